"""What the wheel and the sdist hold."""

from __future__ import annotations

import configparser
import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.wheel


def build(target: str, source: Path, out: Path) -> Path:
    """Build in ``source`` and return the one file that came out."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Contents by name of the wheel from the checkout and of the wheel from the sdist."""
    sdist = build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    built = {
        "checkout": build("wheel", ROOT, tmp_path_factory.mktemp("w1")),
        "sdist": build("wheel", source, tmp_path_factory.mktemp("w2")),
    }
    contents = {}
    for name, path in built.items():
        with zipfile.ZipFile(path) as archive:
            contents[name] = {entry: archive.read(entry) for entry in archive.namelist()}
    return contents


@pytest.mark.parametrize("origin", ["checkout", "sdist"])
def test_the_wheels_yaml_files_are_those_in_conf(wheels: dict[str, dict[str, bytes]], origin: str) -> None:
    """The same names and the same bytes, below rl_cluster/conf."""
    ours = {f"rl_cluster/conf/{path.relative_to(ROOT / 'conf').as_posix()}": path.read_bytes() for path in (ROOT / "conf").rglob("*.yaml")}
    assert len(ours) == 19
    assert {name: data for name, data in wheels[origin].items() if name.endswith((".yaml", ".yml"))} == ours


def test_both_wheels_hold_the_same_and_nothing_foreign(wheels: dict[str, dict[str, bytes]]) -> None:
    """The package, its plugin and its metadata; no tests, no top-level conf."""
    assert wheels["sdist"] == wheels["checkout"]
    names = set(wheels["checkout"])
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rl_cluster", "hydra_plugins"}
    assert "hydra_plugins/__init__.py" not in names  # a namespace shared with other plugins
    assert {
        "rl_cluster/py.typed",
        "rl_cluster/schema.py",
        "hydra_plugins/rl_cluster/__init__.py",
        "hydra_plugins/rl_cluster/search_path.py",
    } <= names


def test_the_metadata_says_what_is_promised(wheels: dict[str, dict[str, bytes]]) -> None:
    """Name, license, Pythons, dependencies."""
    found = {name.rpartition("/")[2]: data.decode() for name, data in wheels["checkout"].items() if ".dist-info/" in name}
    metadata = email.message_from_string(found["METADATA"])
    assert (metadata["Name"], metadata["License-Expression"], metadata["Requires-Python"]) == ("rl-cluster", "Apache-2.0", ">=3.10")
    assert "Apache License" in found["LICENSE"]
    runtime = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(line.split(">")[0].split("<")[0] for line in runtime) == ["attrs", "filelock", "hydra-core", "omegaconf", "ray", "rich"]
    assert sorted(metadata.get_all("Provides-Extra", [])) == ["dev", "nvml"]


def test_the_modules_that_the_commands_name_are_in_the_wheel(wheels: dict[str, dict[str, bytes]]) -> None:
    """A command whose module is missing would only fail at the user's."""
    (text,) = (data.decode() for name, data in wheels["checkout"].items() if name.endswith("entry_points.txt"))
    section = configparser.ConfigParser()
    section.read_string(text)
    commands = dict(section["console_scripts"])
    assert commands["rl-cluster"] == "rl_cluster.app:main"
    for target in commands.values():
        module, _, function = target.partition(":")
        assert f"def {function}(" in wheels["checkout"][f"{module.replace('.', '/')}.py"].decode()
