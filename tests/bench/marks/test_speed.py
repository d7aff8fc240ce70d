"""What runs on a card for the cost of marks and commitments, once through on the CPU with a model of two layers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.marks import speed

ROOT = Path(__file__).resolve().parents[3]


def test_each_kind_is_timed_in_turn_and_written_without_a_path_of_the_machine(tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    command = [sys.executable, str(ROOT / "bench/marks/speed.py"), "--device", "cpu", "--shape", "tiny"]
    options = ["--batches", "1", "2", "--answer", "60", "--rounds", "1", "--out", str(out)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert [row["batch"] for row in found["rows"]] == [1, 2]
    assert all(row["marked_time_ratio"] > 0 and row["committed_time_ratio"] > 0 for row in found["rows"])
    assert found["host"]["commitment_us_a_token"] > 0
    assert str(ROOT) not in out.read_text() and str(tmp_path) not in out.read_text()


def test_an_engine_that_leaves_marks_or_commitments_out_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = speed.Bench(speed.started("tiny", "cpu"), 60, 1, 0)
    own = speed.SamplingParams
    monkeypatch.setattr(speed, "SamplingParams", lambda **wanted: own(**wanted | {"mark": None, "commits": False}))
    with pytest.raises(SystemExit, match="0 of 1 marked answers carry a mark"):
        bench.answers(1, "marked")
    with pytest.raises(SystemExit, match="a committed answer came with other rows"):
        bench.answers(1, "committed")
