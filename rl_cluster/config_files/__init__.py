"""From option files, recipes and words of a command line to trees of keys; the door for these is :mod:`rl_cluster.config`."""
