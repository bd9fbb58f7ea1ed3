"""rl-cluster-check: every mistake with its file and line, and nothing said of good files or files of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl_cluster.config import GROUPS, conf_dir, option_names
from rl_cluster.programs.check_cli import main

ROOT = Path(__file__).parents[2]
SCHEMA = "defaults:\n  - /rl_cluster/schema/cluster@_here_\n  - _self_\n"

CASES: dict[str, tuple[dict[str, str], list[str]]] = {
    "good": (
        {
            "cluster/3x2.yaml": f"# Three of two.\n{SCHEMA}num_nodes: 3\ngpus_per_node: 2\nbundles_per_node: ${{.gpus_per_node}}\n",
            "numa/mine.yaml": "defaults:\n  - /rl_cluster/schema/numa@_here_\n  - _self_\nmembind: off\nstrict: no\n",
            "recipe.yaml": "defaults:\n  - /cluster@policy.cluster: 3x2\n  - /numa@policy.numa: mine\n  - _self_\n"
            "n: 2\nlr: 1e-3\npolicy:\n  cluster: {num_nodes: '${n}', timeout_s: 60, max_colocated_worker_groups: "
            "2}\n  model: {_target_: a.b.C}\n"
            "roles:\n  r:\n    on: {cluster: policy, nodes: [0]}\n",
        },
        [],
    ),
    "values of a role on a bundle that is shared": (
        {"recipe.yaml": "a:\n  cluster: {gpus_per_node: 1}\n  numa: {}\nroles:\n  b: {'on': a}\n"},
        [
            "recipe.yaml:2: a.cluster.max_colocated_worker_groups: must be at least 2 for the roles that share bundle 0 of logical node 0 "
            "(a, b), got 1. Fix: raise it to 2, or give a role other bundles by on.nodes and on.gpus"
        ],
    ),
    "unknown keys, values, types": (
        {"cluster/x.yaml": f"{SCHEMA}num_nods: 2\nstrategy: SPRED\ngpus_per_node: [1]\nmaster_port_range_low: 0\n"},
        [
            "cluster/x.yaml:4: cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write cluster.num_nodes",
            "cluster/x.yaml:5: cluster.strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
            "cluster/x.yaml:6: cluster.gpus_per_node: must be a whole number, got [1]",
            "cluster/x.yaml:7: cluster.master_port_range_low: must be from 1 to 65535, got 0",
        ],
    ),
    "an option file without the schema, in the folder of its group": (
        {"ray/mine.yaml": "kind: simulatd\n"},
        ["ray/mine.yaml:1: ray.kind: must be auto, local or simulated, got 'simulatd'. Fix: write simulated"],
    ),
    "what stands in the way of embedding": (
        {"cluster/x.yaml": f"# Two.\n# @package _global_\n{SCHEMA}num_nodes: ${{cluster.n}}\nname: ${{mine:1}}\n_target_: a.B\n"},
        [
            "cluster/x.yaml:2: must have no @package header, which a recipe could not move. "
            "Fix: delete it; a recipe writes /cluster@policy.cluster: NAME",
            "cluster/x.yaml:6: num_nodes: must be relative in an option file, which goes anywhere in a recipe, got '${cluster.n}'. "
            "Fix: write ${.n} for a key beside it",
            "cluster/x.yaml:7: name: must use no resolver of its own, got '${mine:1}'. Fix: write the value",
            "cluster/x.yaml:8: _target_: must be left out: nothing here is instantiated by Hydra. Fix: worker.target names a class",
        ],
    ),
    "the schema after the keys": (
        {"cluster/x.yaml": "defaults:\n  - _self_\n  - /rl_cluster/schema/cluster@_here_\nnum_nodes: 2\n"},
        [
            "cluster/x.yaml:2: defaults: _self_ must come after the schema, whose defaults would win over this file's keys. "
            "Fix: move _self_ to the end"
        ],
    ),
    "words that yaml reads as something else": (
        {"cluster/x.yaml": f"{SCHEMA}num_nodes: 010\nname: 1_0\nlabel_selector:\n  on: no\n  pool: 1e3\nresources: {{12:30: 1}}\n"},
        [
            "cluster/x.yaml:4: num_nodes: must be a number that YAML leaves alone (it reads 010 as 8), got '010'. "
            "Fix: write 10, or 8 if that is meant",
            "cluster/x.yaml:5: name: must be a text that YAML leaves alone (it reads 1_0 as 10), got '1_0'. Fix: write '1_0' in quotes",
            "cluster/x.yaml:7: label_selector.on: must be a text that YAML leaves alone (it reads no as false), got 'no'. "
            "Fix: write 'no' in quotes",
            "cluster/x.yaml:7: label_selector.on: must be a text that YAML leaves alone (it reads on as true), got 'on'. "
            "Fix: write 'on' in quotes",
            "cluster/x.yaml:8: label_selector.pool: must be a text that YAML leaves alone (it reads 1e3 as 1000.0), got '1e3'. "
            "Fix: write '1e3' in quotes",
            "cluster/x.yaml:9: resources.12:30: must be a text that YAML leaves alone (it reads 12:30 as 750), got '12:30'. "
            "Fix: write '12:30' in quotes",
        ],
    ),
    "names of files that yaml reads as something else": (
        {f"numa/{name}.yaml": "enabled: false\n" for name in ("off", "1e3", "010", "null", "true", "fine")},
        [
            "numa/010.yaml:1: must have a name that YAML leaves alone, got '010' (read as 8). Fix: rename the file",
            "numa/1e3.yaml:1: must have a name that YAML leaves alone, got '1e3' (read as 1000.0). Fix: rename the file",
            "numa/null.yaml:1: must have a name that YAML leaves alone, got 'null' (read as something else than "
            "a text). Fix: rename the file",
            "numa/off.yaml:1: must have a name that YAML leaves alone, got 'off' (read as false). Fix: rename the file",
            "numa/true.yaml:1: must have a name that YAML leaves alone, got 'true' (read as something else than "
            "a text). Fix: rename the file",
        ],
    ),
    "a recipe's defaults list": (
        {
            "recipe.yaml": "defaults:\n  - /cluster@a.cluster: 2x8_sprd\n  - /clustr@b.cluster: 1x8\n  - /numa@a.numa: off\n"
            "  - data: mine\n  - _self_\na:\n  cluster: {gpus_per_node: 2}\n"
        },
        [
            "recipe.yaml:2: defaults[0]: must be an option of cluster (1x8, 1x8_colocated, 2x8_pack, 2x8_spread, "
            "4x8_strict_spread, local or "
            "uneven_8_4), got '2x8_sprd'. Fix: write 2x8_spread",
            "recipe.yaml:3: defaults[1]: must be a group of options, got 'clustr'. Fix: write /cluster@b.cluster: 1x8",
            "recipe.yaml:4: defaults[2]: must name an option that YAML leaves alone (it reads off as false), got 'off'. "
            "Fix: write 'off' in quotes, or better: rename the option",
        ],
    ),
    "a recipe's roles": (
        {
            "recipe.yaml": "defaults:\n  - /cluster@a.cluster: 1x8\n  - _self_\na:\n  lr: 1\n  worker:\n    targt: a.B\n    "
            "kwargs: {x: 010}\n"
            "roles:\n  no: {'on': a}\n  c:\n    on: {cluster: a, nodes: [3]}\n    wrker: {}\n"
        },
        [
            "recipe.yaml:7: a.worker.targt: must be a key of WorkerSpec, got 'a.B'. Fix: write a.worker.target",
            "recipe.yaml:8: a.worker.kwargs.x: must be a text that YAML leaves alone (it reads 010 as 8), got '010'. "
            "Fix: write '010' in quotes",
            "recipe.yaml:9: roles: must name a role by letters, digits, _ and -, with a letter or _ first, got False. "
            "Fix: rename the role: YAML reads yes, on, no and off as true or false",
            "recipe.yaml:10: roles.no: must be a name that YAML leaves alone (it reads it as false), got 'no'. Fix: rename the role",
            "recipe.yaml:13: roles.c.wrker: must be a part of a role, got {}. Fix: write roles.c.worker",
        ],
    ),
    "a value that an option brought": (
        {
            "cluster/bad.yaml": f"{SCHEMA}num_nodes: 2\n",
            "recipe.yaml": "x: 1\ndefaults:\n  - /numa@a.numa: gpu_local\n  - /cluster@a.cluster: bad\na:\n  cluster: "
            "{bundle_ct_per_node_list: [8]}\n",
        },
        [
            "recipe.yaml:6: a.cluster.bundle_ct_per_node_list: must have one entry per logical node, got [8] (1 entries) with num_nodes 2. "
            "Fix: leave num_nodes out (null): the list says it"
        ],
    ),
    "an option at the top of a host's config": (
        {"host.yaml": "defaults:\n  - /cluster@deep.inside: 1x8\ndeep:\n  inside: {strategy: X}\n"},
        ["host.yaml:4: deep.inside.strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'X'"],
    ),
    "keys twice": (
        {"cluster/x.yaml": "num_nodes: 1\nname: a\nnum_nodes: 2\n"},
        ["cluster/x.yaml:3: num_nodes: must stand once in its group, got it again"],
    ),
    "no yaml": ({"x.yaml": "a: [1\n"}, ["x.yaml:2: must be YAML (expected ',' or ']', but got '<stream end>')"]),
    "a number that Python does not read": (
        {"recipe.yaml": f"a:\n  cluster:\n    num_nodes: {'9' * 5000}\n"},
        ["recipe.yaml:3: a.cluster.num_nodes: must be YAML, got a number of more than 4300 digits"],
    ),
    "what looks like a date that is none": ({"recipe.yaml": "a:\n  cluster:\n    gpus_per_node: 1\n    name: 2024-13-45\n"}, []),
    "an open value is no mistake": (
        {"recipe.yaml": "a:\n  cluster:\n    num_nodes: ???\n"},
        [],
    ),
    "files of others": (
        {"train.yaml": "lr: 010\nname: off\n", "cluster/slurm.yaml": "partition: gpu\n", "empty.yaml": "", "list.yaml": "- 1\n"},
        [],
    ),
}


@pytest.mark.parametrize(("files", "expected"), CASES.values(), ids=CASES)
def test_each_mistake_has_its_line(
    files: dict[str, str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole output, without the drawings of overlaps."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code = main(["."])
    *found, last = capsys.readouterr().out.splitlines()
    assert [line for line in found if ".yaml:" in line] == expected
    assert code == (1 if expected else 0)
    assert last.startswith(f"{'FAILED' if expected else 'OK'}: ")
    assert f" {len(expected)} problem{'s' * (len(expected) != 1)}" in last


def test_the_last_line_counts_what_was_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of others are named as such; a file that is not there is a problem."""
    (tmp_path / "other.yaml").write_text("a: 1\n", encoding="utf-8")
    assert main([str(tmp_path), str(conf_dir() / "numa")]) == 0
    assert capsys.readouterr().out == "OK: 5 files checked, 0 problems; 1 with nothing of rl_cluster left alone\n"
    assert main([str(tmp_path / "nowhere.yaml")]) == 1
    assert "nowhere.yaml:1: must be a readable file, got No such file or directory" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["conf", "examples"])
def test_our_own_files_pass(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Option files and example recipes."""
    path = conf_dir() if folder == "conf" else ROOT / folder
    assert main([str(path)]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.startswith("OK: ")


def test_the_command_is_a_program_that_imports_no_ray(tmp_path: Path) -> None:
    """It answers quickly."""
    (tmp_path / "recipe.yaml").write_text("a: {cluster: {gpus_per_node: 0}}\n", encoding="utf-8")
    code = (
        "import sys; from rl_cluster.programs.check_cli import main; code = main(sys.argv[1:]); print('ray' in sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "OK: 1 file checked, 0 problems\nFalse\n", "")


# --- our own option files: what --help says of each is what the file says ---


def as_help(comment: str) -> str:
    """A file's first line as --help shows it: no capital (unless a name begins with it), no full stop."""
    text = comment.removeprefix("# ").rstrip(".")
    return text[0].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


@pytest.mark.parametrize(("group", "option"), [(group, name) for group in GROUPS for name in option_names(group)])
def test_help_says_of_an_option_what_its_first_line_says(group: str, option: str) -> None:
    """One line in the file, one line in --help; neither goes stale."""
    comment = (conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert comment.startswith("# ")
    assert comment.endswith(".")
    shown: dict[tuple[str, str], str] = {}
    current = ""
    help_text = (conf_dir() / "rl_cluster.yaml").read_text(encoding="utf-8").split("== Groups (group=option) ==\n")[1].split("\n\n")[0]
    for line in help_text.splitlines():
        current = line[6:16].strip() or current
        shown[current, line[16:35].strip()] = line[35:]
    assert shown[group, option] == as_help(comment)


def test_help_marks_the_defaults_of_run_py() -> None:
    """The options that are marked are those of the defaults list."""
    import yaml

    entries = yaml.safe_load((conf_dir() / "rl_cluster.yaml").read_text(encoding="utf-8"))["defaults"]
    chosen = {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}
    marked = {
        group: [name for name in option_names(group) if "(default)" in (conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8")]
        for group in GROUPS
    }
    assert marked == {group: [name] for group, name in chosen.items()}
