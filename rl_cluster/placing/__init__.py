"""From a layout to placement groups in Ray."""
