"""From a spec and an inventory to a layout or a shortfall, without Ray; the door is :mod:`rl_cluster.plan`."""
