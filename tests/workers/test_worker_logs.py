"""What the folder of Ray's logs says of one worker: files in, lines out."""

from __future__ import annotations

import os
from pathlib import Path

from rl_cluster.workers.worker_logs import lines_of_process, lines_of_starts


def test_a_process_has_the_log_with_its_pid(tmp_path: Path) -> None:
    """Whatever Ray says of job and worker in its name; of two with one pid the newer counts."""
    for name, text, age in (("a-ffffffff-18", "old", 60), ("b-01000000-18", "new", 0), ("c-01000000-118", "other", 0)):
        path = tmp_path / f"worker-{name}.err"
        path.write_text(text)
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    assert lines_of_process(str(tmp_path), 18) == (str(tmp_path / "worker-b-01000000-18.err"), "new")
    assert lines_of_process(str(tmp_path), 8) is None


def test_what_died_before_it_was_a_worker_wrote_to_the_log_of_its_nodes_raylet(tmp_path: Path) -> None:
    """Nodes of one machine share a folder; what is older is about others, and an empty log says nothing."""
    for number, node in (("", "aa"), (".1", "bb"), (".2", "cc")):
        seen = "liveness notification for node, node_id=bb"
        (tmp_path / f"raylet{number}.out").write_text(f"Setting node ID node_id={node}\n{seen}\n")
        (tmp_path / f"raylet{number}.err").write_text(f"\udcff of {node}" if node != "cc" else "", errors="surrogateescape")
    path = tmp_path / "raylet.1.err"
    assert lines_of_starts(str(tmp_path), "bb", path.stat().st_mtime) == (str(path), "\ufffd of bb")
    assert lines_of_starts(str(tmp_path), "bb", path.stat().st_mtime + 1) is None
    assert lines_of_starts(str(tmp_path), "cc", 0.0) is None
    assert lines_of_starts(str(tmp_path), "dd", 0.0) is None
