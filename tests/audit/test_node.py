import subprocess
import sys
from pathlib import Path

import pytest

from audit.errors import AuditUnavailable
from audit.node import NodeLock

HOLD = """
import sys
from pathlib import Path
from audit.node import NodeLock
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
        cwd=Path(__file__).parent.parent.parent,
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
