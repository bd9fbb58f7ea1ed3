"""The README tells the truth: its commands, outputs, tables, links and snippets are held against the program."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import frozen

from rl_cluster import errors
from rl_cluster.ground import rules
from rl_cluster.ground.interrupts import EXIT_BY_SIGNAL
from rl_cluster.schema import STRATEGIES, ClusterSpec, RaySpec, RunSpec

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@frozen
class Block:
    """A fenced block, and the heading that it stands under."""

    heading: str
    language: str
    text: str


def blocks() -> Iterator[Block]:
    """The fenced blocks of the README, in order."""
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        heading = re.findall(r"^##+ (.+)$", README[: match.start()], re.MULTILINE)[-1]
        yield Block(heading, match[1], match[2])


def rows(first_cell: str) -> list[list[str]]:
    """The cells of the table whose head begins with a cell."""
    lines = README.splitlines()
    start = next(
        number for number, line in enumerate(lines) if line.startswith(f"| {first_cell} |") and lines[number + 1].startswith("| ---")
    )
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return table


def environment(**more: str) -> dict[str, str]:
    """Of a newcomer without a cluster, a GPU or an opinion on Ray."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HYDRA_", "NRL_", "RAY_", "NO_COLOR"))}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ours = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local"}
    return {**kept, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **ours, **more}


# --- outputs ---


def shape(text: str) -> list[str]:
    """What of an output is the same on every machine: numbers, paths and widths go, and lines that then repeat each other."""
    shapes: list[str] = []
    for line in text.splitlines():
        if "[HYDRA]" in line or line == "...":
            continue
        line = re.sub(r"(?<![\w.])[~/](?:/?[\w.@+-]+)+", "PATH", line)
        line = re.sub(r"[┌┬┐├┼┤└┴┘─]+", "---", line)
        line = re.sub(r"\d+(?:[-,.:]\d+)*", "#", line)
        line = re.sub(r"\s+", " ", re.sub(r"(?:\s*# *│)+", " # │", line)).strip().removesuffix(" !")  # marks what is short
        if line and line not in shapes[-1:]:
            shapes.append(line)
    return shapes


CONSOLES = [block.text.splitlines() for block in blocks() if block.language == "console"]
NEEDS_RAY = {
    "python run.py ray=local": [pytest.mark.ray, pytest.mark.slow],  # tests/cli runs it, too
    "python run.py cluster=2x8_spread numa.membind=false ray=simulated": [pytest.mark.ray, pytest.mark.slow],
}
TRANSCRIPTS = [
    pytest.param(
        shown[0].removeprefix("$ "),
        "\n".join(shown[1:-2]),
        int(shown[-1]),
        id=shown[0].removeprefix("$ python run.py").strip() or "main job",
        marks=NEEDS_RAY.get(shown[0].removeprefix("$ "), []),
    )
    for shown in CONSOLES
]


@pytest.mark.parametrize(("command", "output", "code"), TRANSCRIPTS)
def test_shown_outputs_are_what_the_program_prints(command: str, output: str, code: int, tmp_path: Path) -> None:
    """Line by line, but for numbers, paths and the number of CPUs; and the exit code exactly."""
    program, script, *words = shlex.split(command)
    assert (program, script) == ("python", "run.py")
    done = subprocess.run(
        [sys.executable, "run.py", *words, f"hydra.run.dir={tmp_path}/run", f"hydra.sweep.dir={tmp_path}/sweep"],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES=""),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        timeout=200,
        check=False,
    )
    assert shape(done.stdout) == shape(output)
    assert done.returncode == code


def test_every_transcript_ends_with_its_exit_code() -> None:
    """A console block is one command, its output, and the question for its exit code."""
    assert len(CONSOLES) >= 6
    for shown in CONSOLES:
        assert shown[0].startswith("$ python run.py"), shown[0]
        assert shown[-2] == "$ echo $?", shown[0]


# --- the two commands ---


@pytest.mark.parametrize(
    ("end", "extras"), [pytest.param("run.py ray=local", ".", id="main job"), pytest.param("pytest", "'.[dev]'", id="tests")]
)
def test_one_line_sets_up_and_runs(end: str, extras: str) -> None:
    """There is one line for the main job and one for the tests, and each needs nothing but Python and pip before it."""
    prefix = f"python3 -m venv .venv && .venv/bin/pip install -e {extras} && .venv/bin/"
    lines = [line for block in blocks() if block.language == "sh" for line in block.text.splitlines() if line.startswith(prefix)]
    assert len(lines) == 1
    assert lines[0].endswith(end)


# --- tables ---


def leaves(spec: Any, prefix: str = "") -> Iterator[tuple[str, attrs.Attribute[Any], Any]]:
    """Every key of the config with its field and default."""
    for field in attrs.fields(type(spec)):
        value = getattr(spec, field.name)
        if attrs.has(type(value)):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", field, value


def as_yaml(value: object) -> str:
    """A default as one writes it in YAML."""
    words: dict[object, str] = {"": "''"}
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    return words.get(value, str(value)) if isinstance(value, str) else str(value)


def test_the_table_of_keys_is_the_schema() -> None:
    """Same keys in the same order, the same defaults, and every word that a key may be."""
    expected = []
    for key, field, default in leaves(RunSpec()):
        if key == "cluster.num_nodes":
            default = None  # a spec fills it in when it is made
        words = [check.words for check in field.metadata.get(rules.METADATA_KEY, ()) if isinstance(check, rules.OneOf)]
        shown = [f"**`{word}`**" if word == default else f"`{word}`" for word in words[0]] if words else [f"`{as_yaml(default)}`"]
        expected.append((f"`{key}`", " \\| ".join(shown)))
    assert [(key, default) for key, default, _ in rows("key")] == expected


def test_the_table_of_errors_is_the_family() -> None:
    """Every error class, with the builtin that it also is."""
    family = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RlClusterError)]
    expected = [
        (f"`{kind.__name__}`", ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if base is not errors.RlClusterError))
        for kind in family
        if kind is not errors.RlClusterError
    ]
    assert [(name, also) for name, also, _ in rows("error")] == expected


def test_the_table_of_exit_codes_has_every_code() -> None:
    """0, the codes of the errors, and those of the signals that a run ends by in order."""
    codes = {code for name, code in vars(errors).items() if name.startswith("EXIT_")} | set(EXIT_BY_SIGNAL.values())
    assert {int(code) for cell, _ in rows("exit code") for code in cell.split(",")} == codes


@pytest.mark.parametrize("module", ["virtual_cluster", "worker_group", "numa_utils"])
def test_names_of_the_compatibility_table_are_there(module: str) -> None:
    """What the README says stays under its NeMo-RL name can be imported under it."""
    names = {cells[0]: re.findall(r"`(\w+)`", cells[1]) for cells in rows("module")}
    found = importlib.import_module(f"rl_cluster.{module}")
    of_module = names[f"`{module}`"] if module != "worker_group" else ["RayWorkerGroup", "RayWorkerBuilder"]
    assert [name for name in of_module if not hasattr(found, name)] == []
    if module == "virtual_cluster":
        assert [name for name in names["`RayVirtualCluster`"] if not hasattr(found.RayVirtualCluster, name)] == []


def test_the_strategies_are_those_of_the_schema() -> None:
    """One row each, in the schema's order."""
    assert tuple(cells[0].strip("`") for cells in rows("`cluster.strategy`")) == STRATEGIES


# --- links ---


PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES)
def test_links_are_relative_and_lead_somewhere(page: str) -> None:
    """To files of this repository and headings of the page; other sites only by their names' own addresses."""
    text = (ROOT / page).read_text(encoding="utf-8")
    slugs = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        assert not path.startswith("/"), target
        assert ((ROOT / page).parent / path).exists(), target
        assert path or anchor in slugs, target


def test_every_page_can_be_found_from_the_readme() -> None:
    """No page of docs/ is an orphan."""
    assert [page for page in PAGES if page != "README.md" and f"]({page})" not in README] == []


# --- snippets ---

HELLO = next(block.text for block in blocks() if block.text.startswith("# hello.py"))


def snippet(heading: str) -> str:
    """The Python under a heading."""
    found = [block.text for block in blocks() if block.language == "python" and block.heading == heading]
    assert found, heading
    return "".join(found)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a simulated Ray of two nodes with one GPU each, whose processes find a GPU->CPU map."""
    from rl_cluster.planning.simulated_inventory import simulated_inventory
    from rl_cluster.simulate import simulated_cluster

    affinity = tmp_path_factory.mktemp("map") / "affinity"
    affinity.write_text(f"0:{min(os.sched_getaffinity(0))}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("NRL_GPU_CPU_AFFINITY_FILE", str(affinity))
        spec = ClusterSpec(num_nodes=2, gpus_per_node=1, strategy="STRICT_SPREAD")
        with simulated_cluster(simulated_inventory(spec, RaySpec())) as simulated:
            yield simulated.address


def run_snippet(text: str, address: str, folder: Path, *words: str) -> str:
    """Run a script beside hello.py, against a cluster, and return what it printed."""
    (folder / "hello.py").write_text(HELLO, encoding="utf-8")
    (folder / "recipe.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "recipe.py", *words],
        cwd=folder,
        env=environment(RAY_ADDRESS=address),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.ray
def test_the_hydra_recipe_runs(two_nodes: str, tmp_path: Path) -> None:
    """The YAML and the Python of the README make a recipe; keys of the embedded groups change on its command line."""
    (config,) = [block.text for block in blocks() if block.language == "yaml" and block.heading == "In a Hydra recipe"]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/config.yaml").write_text(config, encoding="utf-8")
    printed = run_snippet(snippet("In a Hydra recipe"), two_nodes, tmp_path, "policy.cluster.gpus_per_node=1", "hydra.run.dir=out")
    assert printed.splitlines()[0] == "['hi from rank 0 of 2', 'hi from rank 1 of 2']"
    assert "policy" in printed


@pytest.mark.slow
@pytest.mark.ray
def test_the_recipe_without_hydra_runs(two_nodes: str, tmp_path: Path) -> None:
    """The same by plain Python."""
    text = snippet("Without Hydra")
    assert "gpus_per_node=4" in text
    printed = run_snippet(text.replace("gpus_per_node=4", "gpus_per_node=1"), two_nodes, tmp_path)
    assert printed == "['hi from rank 0 of 2', 'hi from rank 1 of 2']\n"


@pytest.mark.slow
@pytest.mark.ray
def test_the_snippet_for_foreign_actors_runs(two_nodes: str, tmp_path: Path) -> None:
    """Actors that another framework makes sit on the planned nodes, have their GPU, and are bound."""
    text = snippet("Frameworks that make their own actors")
    assert "gpus_per_node=4" in text
    text = text.replace("gpus_per_node=4", "gpus_per_node=1") + "    print(ray.get([trainer.where.remote() for trainer in trainers]))\n"
    printed = run_snippet(text, two_nodes, tmp_path)
    (first, first_gpus, first_status), (second, second_gpus, second_status) = ast.literal_eval(printed)
    assert first != second
    assert [str(gpu) for gpu in (*first_gpus, *second_gpus)] == ["0", "0"]
    assert (first_status, second_status) == ("bound", "bound")
