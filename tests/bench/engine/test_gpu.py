"""What `make gpu-bench` runs on a card, once through on the CPU with a model of two layers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("run", ["tiny:bf16", "tiny-moe:bf16"])
def test_a_row_is_measured_and_written_beside_its_machine(run: str, tmp_path: Path) -> None:
    out = tmp_path / "engine.json"
    command = [sys.executable, str(ROOT / "bench/engine/gpu.py"), "--device", "cpu", "--runs", run]
    done = subprocess.run(
        [*command, "--only", "first token, prompt 128", "--out", str(out)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(out.read_text())
    rows = {row["name"]: row for row in report["workloads"]}
    assert rows[f"{run} first token, prompt 128"]["unit"] == "ms"
    assert rows[f"{run} first token, prompt 128"]["value"] > 0
    assert "machine" in report and report["runs"][run]["rows"]


def test_a_run_that_is_not_known_is_no_result(tmp_path: Path) -> None:
    out = tmp_path / "engine.json"
    command = [sys.executable, str(ROOT / "bench/engine/gpu.py"), "--device", "cpu", "--runs", "tiny:bf3"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "bf3" in done.stderr and "nothing was measured" in done.stderr
    assert not out.exists()
