"""Hydra finds its plugins in packages below ``hydra_plugins``."""
