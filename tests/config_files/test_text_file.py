"""What a user names as a file, and what is none."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_cluster.config_files import text_file
from rl_cluster.config_files.options import parse_words
from rl_cluster.config_files.recipe_file import load_recipe
from rl_cluster.errors import ConfigError
from rl_cluster.planning.inventory_file import load_inventory
from rl_cluster.programs.conf_check import check_conf

LOADERS = {"inventory": load_inventory, "recipe": load_recipe}
TEXTS = {
    "inventory": "nodes: [{resources: {CPU: 8}}]\n",
    "recipe": "policy: {cluster: {num_nodes: 1, gpus_per_node: 1}, worker: {}}\n",
}


def sparse(path: Path) -> None:
    """A large file that takes no room."""
    with open(path, "wb") as file:
        file.truncate(2**30)


def a_socket(path: Path) -> None:
    """The file of a listening socket."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # a socket's path has at most 107 bytes


MADE: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (os.mkdir, "must be a readable file, got Is a directory. Fix: name a file in that folder"),
    "missing": (lambda path: None, "must be a readable file, got No such file or directory. Fix: correct its path"),
    "nearly": (
        lambda path: path.with_name("givens").mkdir(),
        "must be a readable file, got No such file or directory. Fix: write {near}",
    ),
    "zeros": (lambda path: path.symlink_to("/dev/zero"), "must be a regular file, got a device"),
    "nothing": (lambda path: path.symlink_to("/dev/null"), "must be a regular file, got a device"),
    "socket": (a_socket, "must be a readable file, got No such device or address"),
    "circle": (lambda path: path.symlink_to(path), "must be a readable file, got Too many levels of symbolic links"),
    "large": (sparse, "must have at most {limit} MiB, got 1024.0 MiB"),
    "bytes": (lambda path: path.write_bytes(b"\xff\xfe"), "must be a text file in UTF-8, got other bytes"),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize(("make", "problem"), MADE.values(), ids=MADE)
def test_what_is_no_file_is_one_line(tmp_path: Path, kind: str, make: Callable[[Path], object], problem: str) -> None:
    """It is named at once, and not read."""
    path = tmp_path / "given"
    make(path)
    with pytest.raises(ConfigError) as caught:
        LOADERS[kind](path)
    where = f"inventory {path}" if kind == "inventory" else str(path)
    assert caught.value.problems == (f"{where}: {problem.format(limit=64 if kind == 'inventory' else 1, near=path.with_name('givens'))}",)


@pytest.mark.parametrize("kind", LOADERS)
def test_a_pipe_that_ends_is_read(kind: str, tmp_path: Path) -> None:
    """As a shell's ``<(command)`` gives it, whose text comes bit by bit."""
    path = tmp_path / "written"
    path.write_text(TEXTS[kind], encoding="utf-8")
    read_end, write_end = os.pipe()

    def write() -> None:
        with open(write_end, "w", encoding="utf-8") as pipe:
            for letter in TEXTS[kind]:
                print(letter, end="", file=pipe, flush=True)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = LOADERS[kind](f"/dev/fd/{read_end}")
    finally:
        writer.join()
        os.close(read_end)
    expected = LOADERS[kind](path)
    assert getattr(found, "nodes", found) == getattr(expected, "nodes", expected)


@pytest.mark.parametrize("kind", LOADERS)
def test_a_pipe_that_never_ends_is_not_read_for_ever(kind: str) -> None:
    """No more than a file of this kind can have."""
    read_end, write_end = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            while True:
                os.write(write_end, b"#" * 65536)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(ConfigError, match=r"must have at most \d+ MiB, got more$"):
            LOADERS[kind](f"/dev/fd/{read_end}")
    finally:
        os.close(read_end)
        writer.join()
        os.close(write_end)


def test_a_pipe_in_which_nothing_comes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may hang."""
    monkeypatch.setattr(text_file, "SILENCE_S", 0.0)
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(text_file.UnreadableError, match=r"^must be a readable file, got a pipe in which nothing came for 0 s$"):
            text_file.read_text(f"/dev/fd/{read_end}", max_bytes=100)
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_pipe_is_read_once_only() -> None:
    """The second reader is told so."""
    read_end, write_end = os.pipe()
    os.close(write_end)
    try:
        with pytest.raises(text_file.UnreadableError, match=r"got an empty pipe \(one can be read once only\)$"):
            text_file.read_text(f"/dev/fd/{read_end}", max_bytes=100)
    finally:
        os.close(read_end)


@pytest.mark.parametrize("levels", [60, 3000])
def test_more_levels_than_can_be_read_are_one_line(tmp_path: Path, levels: int) -> None:
    """In a recipe, in an option file that is checked, and in a word of the command line."""
    text, problem = "a: " + "[" * levels + "]" * levels, "must have at most 50 levels in each other, got more"
    path = tmp_path / "given.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    assert caught.value.problems == (f"{path}: {problem}",)
    with pytest.raises(ConfigError) as caught:
        check_conf(path)
    assert caught.value.problems == (f"{path}:1: {problem}",)
    problems: list[str] = []
    assert parse_words([f"worker.kwargs={{{text}}}"], problems) == []
    assert problems == [f"worker.kwargs: {problem}"]


def test_levels_that_can_be_read_are_read(tmp_path: Path) -> None:
    """Brackets beside each other, or within a text, are no levels."""
    path = tmp_path / "given.yaml"
    path.write_text(TEXTS["recipe"] + "notes: [" + "[], " * 60 + "'" + "[" * 60 + "']\n", encoding="utf-8")
    assert load_recipe(path) == load_recipe(path)
    assert check_conf(path) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("a: &a {b: *a}\n", "must have no group that holds itself, got *a", id="itself"),
        pytest.param(
            "a0: &a0 [x, x]\n" + "".join(f"a{level}: &a{level} [*a{level - 1}, *a{level - 1}]\n" for level in range(1, 30)),
            "must have at most 10000000 entries with its aliases, got more",
            id="doubled-again-and-again",
        ),
        pytest.param(
            "a0: &a0 [x]\n" + "".join(f"a{level}: &a{level} [*a{level - 1}]\n" for level in range(1, 60)),
            "must have at most 50 levels in each other, got more",
            id="one-level-each",
        ),
    ],
)
@pytest.mark.parametrize("kind", LOADERS)
def test_aliases_that_make_a_text_endless_are_one_line(tmp_path: Path, kind: str, text: str, problem: str) -> None:
    """Short as the text is, nobody can print or walk through what it means."""
    path = tmp_path / "given.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        LOADERS[kind](path)
    assert [each.removeprefix("inventory ") for each in caught.value.problems] == [f"{path}: {problem}"]


def test_aliases_are_read(tmp_path: Path) -> None:
    """One machine like another."""
    path = tmp_path / "given.yaml"
    path.write_text("nodes: [{resources: &r {CPU: 8}}, {resources: *r}, {resources: *r}]\n", encoding="utf-8")
    assert [node.total for node in load_inventory(path).nodes] == [{"CPU": 8.0}] * 3
