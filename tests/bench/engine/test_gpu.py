"""What `make gpu-bench` runs on a card, once through on the CPU with a model of two layers."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from backend.engine.adapter_places import OwnPlaces
from backend.engine.adapters import Adapters
from backend.engine.engine import Engine
from backend.engine_config import EngineConfig, size_cache
from backend.models.adapters.bank import AdapterBank
from bench.engine import adapters as lora
from bench.engine import gpu
from bench.engine.workloads import uniform
from tests.backend.tiny import tiny_model

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


def test_a_run_with_adapters_measures_eight_that_differ_and_the_places_without(tmp_path: Path) -> None:
    model = tiny_model(head_dim=16)
    names = lora.write(tmp_path, model.config)
    own = OwnPlaces(AdapterBank(model.config, 8, 16, torch.float32, torch.device("cpu")), model.config, tmp_path)
    model.adapt(own.bank)
    config = EngineConfig(model="", num_blocks=64, max_num_seqs=16, max_num_batched_tokens=64)
    engine = Engine(model, config, size_cache(config, model.config, 4), adapters=Adapters(own))
    digests = {engine.load_adapter(name, name).digest for name in names}
    assert len(digests) == lora.COUNT
    assert [row.name for row in gpu.rows_of("", adapted=True)] == [lora.ADAPTED, lora.IDLE]
    assert lora.ROW not in [row.name for row in gpu.rows_of("", adapted=False)]
    assert lora.ROW in [row.name for row in gpu.rows_of("batch 64", adapted=False)]
    bench = gpu.Bench(engine, tuple(names))
    assert bench.generate(uniform(9, 8, 3)(random.Random(1), engine.vocab_size)) > 0
