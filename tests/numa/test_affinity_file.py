"""The file that maps GPUs to CPUs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rl_cluster.numa.affinity_file import read_affinity_file, write_affinity_file


def put(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    path.chmod(0o644)
    return str(path)


def test_bad_lines_are_named_and_the_others_count(tmp_path: Path) -> None:
    """No colon, blank, comment, CRLF, no cpulist, no CPU, no GPU, a GPU twice."""
    path = put(tmp_path / "map", "# a comment\r\n0:0-3\r\n\r\nnonsense\r\n1:x-y\r\n2: 4-5 , 7 \r\n3:\r\nzero:1\r\nGPU5:9\r\n2:8\r\n")
    file = read_affinity_file(path)
    assert file.cpus_by_gpu == {0: {0, 1, 2, 3}, 2: {4, 5, 7}, 5: {9}}
    assert [problem.partition(": ")[0].rpartition(" ")[2] for problem in file.problems] == ["4", "5", "7", "8", "10"]
    assert "'nonsense'" in file.problems[0]
    assert file.refusal is None


@pytest.mark.parametrize("text", ["", "\n", "0", "# only words\n", "\x00"])
def test_file_that_maps_nothing_is_no_answer(tmp_path: Path, text: str) -> None:
    """Empty, one byte, or comments only."""
    file = read_affinity_file(put(tmp_path / "map", text))
    assert file.refusal == f"{tmp_path}/map maps no GPU"
    assert not file.untrusted


def test_missing_file_and_folder_are_no_answer(tmp_path: Path) -> None:
    """A reason each, no exception."""
    assert "no such file" in str(read_affinity_file(str(tmp_path / "none")).refusal)
    assert read_affinity_file(str(tmp_path)).refusal == f"{tmp_path} is not a regular file"
    assert read_affinity_file("bad\0name").refusal is not None


def test_link_is_not_trusted(tmp_path: Path) -> None:
    """Whoever can make a link in a shared folder chooses the file."""
    put(tmp_path / "map", "0:0\n")
    (tmp_path / "link").symlink_to(tmp_path / "map")
    file = read_affinity_file(str(tmp_path / "link"))
    assert file.untrusted
    assert "symbolic link" in str(file.refusal)


def test_file_that_everybody_can_write_is_not_trusted(tmp_path: Path) -> None:
    """Mode 0666."""
    path = put(tmp_path / "map", "0:0\n")
    os.chmod(path, 0o666)
    file = read_affinity_file(path)
    assert file.untrusted
    assert file.cpus_by_gpu == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_a_stranger_is_not_trusted(tmp_path: Path) -> None:
    """Neither root's nor this user's."""
    path = put(tmp_path / "map", "0:0\n")
    os.chown(path, 4321, 4321)
    file = read_affinity_file(path)
    assert file.untrusted
    assert "user 4321" in str(file.refusal)


def test_written_file_reads_back_and_is_readable_by_all(tmp_path: Path) -> None:
    """Mode 0644 whatever the umask, nothing left beside it, CPU ids above 255."""
    path = tmp_path / "map"
    old = os.umask(0o077)
    try:
        write_affinity_file(str(path), {1: {256, 257}, 0: {0, 2}}, comment="two\nlines")
    finally:
        os.umask(old)
    assert path.read_text() == "# two\n# lines\n0:0,2\n1:256-257\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["map"]
    assert read_affinity_file(str(path)).cpus_by_gpu == {0: {0, 2}, 1: {256, 257}}


def test_writing_replaces_a_link_and_leaves_its_target_alone(tmp_path: Path) -> None:
    """Somebody else's link in a shared folder."""
    put(tmp_path / "precious", "keep")
    (tmp_path / "map").symlink_to(tmp_path / "precious")
    write_affinity_file(str(tmp_path / "map"), {0: {0}})
    assert (tmp_path / "precious").read_text() == "keep"
    assert not (tmp_path / "map").is_symlink()


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """The target is a folder, which can't be replaced."""
    (tmp_path / "map").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_affinity_file(str(tmp_path / "map"), {0: {0}})
    assert os.listdir(tmp_path) == ["map"]


def test_made_up_map_says_so(tmp_path: Path) -> None:
    """The report of a simulated cluster is marked."""
    write_affinity_file(str(tmp_path / "map"), {0: {0}}, simulated=True)
    assert read_affinity_file(str(tmp_path / "map")).simulated
