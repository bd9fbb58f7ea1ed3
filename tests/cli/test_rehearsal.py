"""What is said below a shortfall: a command to rehearse it where that makes sense, and no advice that can't help."""

from __future__ import annotations

import pytest

from rl_cluster.errors import PlacementTimeoutError, ResourceInsufficientError
from rl_cluster.planning.layout import Shortfall
from rl_cluster.programs.rehearsal import planned_on, through_recipe, with_rehearsal
from rl_cluster.schema import ClusterSpec

HOPELESS = Shortfall(spec=ClusterSpec(), never=True, headline="too large")
WITH_FIX = Shortfall(spec=ClusterSpec(), never=True, headline="too large", suggestions=("cluster.num_nodes=1 fits now",))
COMMAND = "To rehearse it on this machine:\n  rl-cluster "


@pytest.mark.parametrize(
    ("kind", "shortfall", "words", "below"),
    [
        pytest.param("running", WITH_FIX, ["cluster=1x8"], f"{COMMAND}cluster=1x8 ray=simulated", id="suggestions-are-enough"),
        pytest.param(
            "running",
            HOPELESS,
            ["cluster=1x8"],
            f"Fix: add nodes that hold it, or ask for less. {COMMAND}cluster=1x8 ray=simulated",
            id="nothing-else-to-say",
        ),
        pytest.param(
            "none",
            WITH_FIX,
            ["--config-dir=conf", "cluster=my own", "ray=auto", "ray.num_cpus=2", "+ray.num_gpus=1", "mode=plan"],
            "No running Ray cluster was found (looked at ray.address, $RAY_ADDRESS and this machine), and a local one here would be too "
            "small. Fix: ray.address=HOST:PORT for a cluster that holds it. "
            f"{COMMAND}--config-dir=conf 'cluster=my own' mode=plan ray=simulated",
            id="all-words-but-those-of-the-ray",
        ),
        pytest.param(
            "local",
            WITH_FIX,
            ["ray=local"],
            "A local Ray on this machine is too small. Fix: ray=auto ray.address=HOST:PORT for a cluster that holds it. "
            f"{COMMAND}ray=simulated",
            id="a-local-ray-was-asked-for",
        ),
        pytest.param("file", WITH_FIX, ["mode=plan", "inventory=x.yaml"], "", id="a-file-is-made-up-already"),
        pytest.param(
            "file",
            HOPELESS,
            ["mode=plan", "inventory=x.yaml"],
            "Fix: give the nodes of the file what is short, or ask for less",
            id="a-file-that-holds-nothing-like-it",
        ),
        pytest.param("simulated", WITH_FIX, ["ray=simulated"], "", id="a-simulation"),
        pytest.param(
            "simulated",
            WITH_FIX,
            ["ray=simulated", "ray.simulated_nodes=1"],
            "Fix: leave ray.simulated_nodes=1 out: a simulated cluster is as large as needed by itself",
            id="a-simulation-made-too-small",
        ),
    ],
)
def test_what_is_said_below_a_shortfall(
    monkeypatch: pytest.MonkeyPatch, kind: str, shortfall: Shortfall, words: list[str], below: str
) -> None:
    """The whole command line is repeated but for its choice of a Ray; what is made up already is not rehearsed."""
    monkeypatch.setattr("sys.argv", ["/opt/bin/rl-cluster"])
    error = with_rehearsal(ResourceInsufficientError("too large", shortfall=shortfall), words, kind=kind)
    assert str(error) == (f"too large\n{below}" if below else "too large")
    assert error.facts == {"shortfall": shortfall}


def test_a_recipes_keys_go_into_one_word_beside_those_given() -> None:
    """A second ``recipe_overrides=`` takes the place of the first, so what was given is repeated; the rest stays as it is."""
    told = (
        "wait: it fits when job 02 ends (actors 'a', 'b')",
        "c.cluster.strategy=PACK fits now",
        "c.cluster.x=1 c.cluster.y=[2,2] fits now",
    )
    short = Shortfall(spec=ClusterSpec(), never=False, headline="too large", suggestions=told, name="c", key="c.cluster")
    error = through_recipe(short.to_error(), ["a.cluster.num_nodes=2"])
    assert str(error).splitlines()[1:] == [
        "It would fit if nothing were held.",
        "Fix: wait: it fits when job 02 ends (actors 'a', 'b')",
        """Fix: 'recipe_overrides=["a.cluster.num_nodes=2","c.cluster.strategy=PACK"]' fits now""",
        """Fix: 'recipe_overrides=["a.cluster.num_nodes=2","c.cluster.x=1","c.cluster.y=[2,2]"]' fits now""",
    ]


def test_a_timeout_stays_a_timeout() -> None:
    """The kind of the error is kept."""
    assert type(with_rehearsal(PlacementTimeoutError("late", shortfall=None), [], kind="running")) is PlacementTimeoutError


@pytest.mark.parametrize(
    ("session_kind", "asked", "kind"),
    [
        ("attached", "auto", "running"),
        ("local", "auto", "none"),
        ("local", "local", "local"),
        ("simulated", "simulated", "simulated"),
        ("file", "auto", "file"),
    ],
)
def test_what_was_planned_on(session_kind: str, asked: str, kind: str) -> None:
    """A local Ray is either what was asked for, or all that could be had."""
    assert planned_on(session_kind, asked=asked) == kind
