"""The two-phase start of workers; the door is :mod:`rl_cluster.worker_group`."""
