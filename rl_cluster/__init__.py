"""Declarative Ray layouts for RL post-training. Importing this package imports no Ray and has no side effect."""
