"""Several roles, planned, placed and started together."""
