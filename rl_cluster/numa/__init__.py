"""NUMA: where a GPU is, what may be bound to, and what was really bound."""
