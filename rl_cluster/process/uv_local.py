"""What an environment takes from folders and files of this machine's disk: which packages these are, and what is in them.

Only what is installed by copy: an editable package is read where it lies. uv keeps the wheel that it once built of a local folder, and
looks at little more than the folder's pyproject.toml to see whether that is still right. So a build must name these packages to uv.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from attrs import frozen

from rl_cluster.process.uv_request import UvRequest

__all__ = ["LocalPackage", "digest", "find_lock", "local_packages", "split_with"]

_LOCKED = re.compile(r'^name = "([^"]+)"\n(?:(?!\[)[^\n]*\n)*?source = \{ (directory|path|editable) = "([^"]+)"', re.MULTILINE)
_SOURCE = re.compile(r'^\s*"?([\w.-]+)"?\s*=\s*[\[{]([^\n]*\bpath\s*=\s*"([^"\n]+)"[^\n]*)', re.MULTILINE)  # a line of tool.uv.sources
_NAME = re.compile(
    r"""\bname\s*=\s*["']?([a-z0-9](?:[\w.-]*[a-z0-9])?)""", re.ASCII | re.IGNORECASE
)  # of a project, in pyproject.toml, setup.cfg or setup.py
_NAMING_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
_BETWEEN_PACKAGES = re.compile(r",(?=\s*[A-Za-z./~])(?![^\[]*\])")  # not the commas of "a>1,<2" and "a[x,y]"
_ARCHIVE = re.compile(r"\.(whl|zip|tar\.\w+|tgz)$")
_OUTPUTS = frozenset({"build", "dist", "node_modules"})  # at the top of a project, unless they are packages


@frozen
class LocalPackage:
    """A package that is copied into an environment from this machine's disk."""

    names: tuple[str, ...]  # a file of the folder may name several things, one of which is the package; none: it is no package
    path: Path  # its folder or wheel, or a file that names packages


def local_packages(request: UvRequest, *, project_dir: Path) -> list[LocalPackage]:
    """The packages of a request that are installed by copy from local folders and files.

    Args:
        request: What the environment is made of.
        project_dir: The uv project, on this machine.

    Raises:
        OSError: A file of the project can't be read.
    """
    found: dict[Path, LocalPackage] = {}
    lock = find_lock(project_dir)
    for local in _locked(lock, request.sync_args) if lock else ():
        found[local.path] = local
    if not {"--locked", "--frozen"} & {*request.sync_args}:  # uv may write another lock, with what the project says now
        for folder in {project_dir, lock.parent if lock else project_dir}:
            _add_sources(folder, found)
    for kind, value in request.with_args:
        for path in _local_requirements(project_dir, kind, value):
            _add_with(path, found)
    return list(found.values())


def find_lock(project_dir: Path) -> Path | None:
    """The ``uv.lock`` of a project: its own, or that of the workspace above it."""
    return next((folder / "uv.lock" for folder in (project_dir, *project_dir.parents) if (folder / "uv.lock").is_file()), None)


def split_with(value: str) -> list[str]:
    """The packages of one ``--with``, which uv lets commas part: ``"a,b>1,<2"`` is a and ``b>1,<2``."""
    return [part.strip() for part in _BETWEEN_PACKAGES.split(value) if part.strip()]


def digest(path: Path) -> str:
    """Of a file's content, or of all files below a folder that could be installed; empty where there is nothing."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    if not path.is_dir():
        return ""
    whole = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        top = folder == str(path)
        folders[:] = sorted(name for name in folders if not _is_output(Path(folder, name), top=top))
        for name in sorted(files):
            file = Path(folder, name)
            if file.is_file():
                whole.update(f"{file.relative_to(path)}\0{digest(file)}\0".encode(errors="surrogateescape"))
    return whole.hexdigest()


def _is_output(folder: Path, *, top: bool) -> bool:
    if folder.name == "__pycache__" or folder.name.endswith(".egg-info"):
        return True
    return top and (folder.name.startswith(".") or (folder.name in _OUTPUTS and not (folder / "__init__.py").exists()))


def _locked(lock: Path, sync_args: tuple[str, ...]) -> Iterator[LocalPackage]:
    copied = {_normal(value) for name, value in itertools.pairwise(sync_args) if name == "--no-editable-package"}
    for name, kind, where in _LOCKED.findall(lock.read_text()):
        if kind != "editable" or "--no-editable" in sync_args or _normal(name) in copied:
            yield LocalPackage((name,), Path(os.path.normpath(lock.parent / where)))


def _add_sources(folder: Path, found: dict[Path, LocalPackage]) -> None:
    for name, line, where in _SOURCE.findall(_text(folder / "pyproject.toml")):
        path = Path(os.path.normpath(folder / where))
        if path not in found and not re.search(r"\beditable\s*=\s*true", line):
            found[path] = LocalPackage((name,), path)


def _add_with(path: Path, found: dict[Path, LocalPackage]) -> None:
    """A folder or wheel, and the local folders that its own project names."""
    path = Path(os.path.normpath(path))
    if path in found:
        return
    if path.is_dir():
        names = [name for file in _NAMING_FILES for name in _NAME.findall(_text(path / file))]
    else:
        names = [path.name.partition("-")[0]] if _ARCHIVE.search(path.name) else []
    found[path] = LocalPackage(tuple(dict.fromkeys(names)), path)
    for _, line, where in _SOURCE.findall(_text(path / "pyproject.toml")):
        if not re.search(r"\beditable\s*=\s*true", line):
            _add_with(path / where, found)


def _local_requirements(project_dir: Path, kind: str, value: str) -> Iterator[Path]:
    if kind == "package":
        yield from (path for part in split_with(value) for path in _local_paths(part, (project_dir,)))
    elif kind == "requirements":
        yield from _of_requirements_file(project_dir / os.path.expanduser(value), project_dir, seen=set())


def _of_requirements_file(file: Path, project_dir: Path, *, seen: set[Path]) -> Iterator[Path]:
    if file in seen or not file.is_file():
        return
    seen.add(file)
    for line in file.read_text(errors="replace").splitlines():
        option, _, nested = line.strip().partition(" ")
        if option in ("-r", "-c", "--requirement", "--constraint"):
            yield file.parent / nested.strip()
            yield from _of_requirements_file(file.parent / nested.strip(), project_dir, seen=seen)
        elif option and not option.startswith(("-", "#")):
            yield from _local_paths(line, (project_dir, file.parent))


def _local_paths(requirement: str, bases: tuple[Path, ...]) -> Iterator[Path]:
    """Where a requirement lies on the disk: ``./folder[extra]``, ``name @ file:///folder``, ``a.whl``; nowhere if it is an index's."""
    text = re.split(r"\s+[;#]", requirement)[0].strip()
    text = text.partition("@")[2].strip() if re.match(r"[\w.-]+\s*(\[[^]]*\])?\s*@", text) else text
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    text = re.sub(r"\[[^]]*\]$", "", text)
    if "/" in text or text.startswith(".") or _ARCHIVE.search(text):
        yield from (path for base in bases if (path := base / os.path.expanduser(text)).exists())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""
