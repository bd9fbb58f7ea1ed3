"""What everything stands on: rules of values, signals, and three programs that are started by their path."""
