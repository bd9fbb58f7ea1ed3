"""What a node label and a label selector look like to Ray."""

from __future__ import annotations

from rl_cluster.ground.rules import Matches

# Ray's rules for label selectors (ray/_private/label_utils.py of Ray 2.60), which are Kubernetes' rules for labels.
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
LABEL_KEY = Matches(rf"(?:(?=[^/]{{1,253}}/){_LABEL}/)?{_LABEL}", "a Ray label key such as ray.io/accelerator-type")
LABEL_VALUE = Matches(
    rf"!?{_LABEL}|!?in\({_LABEL}(?:, ?{_LABEL})*\)|",
    "a Ray label selector: v, '!v', 'in(a, b)' or '!in(a, b)'",
    "write one value, or in(...) with letters, digits, '-', '_' and '.' in each value",
)
