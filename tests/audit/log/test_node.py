import subprocess
import sys
import threading
from pathlib import Path

import pytest

from audit.errors import AuditUnavailable
from audit.log.node import NodeLock

HOLD = """
import sys
import threading
from pathlib import Path
from audit.log.node import NodeLock
lock = NodeLock.acquire(Path(sys.argv[1]), "gw-1")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_name_is_free_again_once_it_is_released(tmp_path: Path) -> None:
    NodeLock.acquire(tmp_path, "gw-1").release()
    NodeLock.acquire(tmp_path, "gw-1").release()


def test_names_do_not_exclude_one_another(tmp_path: Path) -> None:
    locks = [NodeLock.acquire(tmp_path, name) for name in ("gw-1", "gw-2")]
    for lock in locks:
        lock.release()


def test_a_name_is_held_against_other_processes_until_its_process_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(AuditUnavailable, match="another process already writes this log as node gw-1"):
            NodeLock.acquire(tmp_path, "gw-1")
        holder.kill()
    NodeLock.acquire(tmp_path, "gw-1").release()


def test_a_folder_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(AuditUnavailable, match="cannot be opened"):
        NodeLock.acquire(tmp_path / "nowhere", "gw-1")


def test_a_released_name_leaves_no_file(tmp_path: Path) -> None:
    NodeLock.acquire(tmp_path, "cli-7").release()
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_held_again_after_its_file_was_removed_excludes_others(tmp_path: Path) -> None:
    first = NodeLock.acquire(tmp_path, "gw-1")
    first.release()
    second = NodeLock.acquire(tmp_path, "gw-1")
    with pytest.raises(AuditUnavailable, match="another process"):
        NodeLock.acquire(tmp_path, "gw-1")
    second.release()


def test_threads_that_take_and_release_one_name_never_hold_it_together(tmp_path: Path) -> None:
    holders, most, guard = 0, 0, threading.Lock()

    def take_often() -> None:
        nonlocal holders, most
        for _ in range(200):
            try:
                lock = NodeLock.acquire(tmp_path, "gw-1")
            except AuditUnavailable:
                continue
            with guard:
                holders += 1
                most = max(most, holders)
            with guard:
                holders -= 1
            lock.release()

    threads = [threading.Thread(target=take_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_files_of_killed_commands_are_swept_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "node-cli-1.lock").touch()
    living = NodeLock.acquire(tmp_path, "cli-2")
    assert not (tmp_path / "node-cli-1.lock").exists()
    lock = NodeLock.acquire(tmp_path, "gw-1")
    assert (tmp_path / "node-cli-2.lock").exists()
    lock.release()
    living.release()


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "node-gw-1.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditUnavailable, match="cannot be opened"):
        NodeLock.acquire(tmp_path, "gw-1")
    assert not (tmp_path / "elsewhere").exists()
