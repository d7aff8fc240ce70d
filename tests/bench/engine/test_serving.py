"""The bench of the HTTP server: once without a model, and once as it runs on a card, on the CPU with two layers."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from backend.models.checkpoints.tokenizer import from_folder
from bench.engine.serving import load
from bench.engine.serving.__main__ import WORDS, Server, engine_settings, write_tokenizer

ROOT = Path(__file__).resolve().parents[3]


def measured(folder: Path, *options: str) -> dict[str, Any]:
    out = folder / "serving.json"
    command = [sys.executable, str(ROOT / "bench/engine/serving"), "--out", str(out), "--load-processes", "2"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(out.read_text())
    return report


@pytest.mark.model
def test_what_the_server_relays_is_counted_for_each_number_of_clients(tmp_path: Path) -> None:
    report = measured(
        tmp_path, "--clients", "2,8", "--requests", "16", "--prompt", "20", "--answer", "20", "--rate", "4000"
    )
    assert {name.partition(":")[0] for name in report["stages_us"]} == {"engine", "server"}
    assert all(cost > 0 for cost in report["stages_us"].values())
    for row, clients in zip(report["rows"], (2, 8), strict=True):
        assert (row["clients"], row["tokens"]) == (clients, 16 * 20)
        assert row["tok_s"] > 0
        assert row["server_cpu_us"] > 0 and row["first_token_ms"]["p50"] > 0


def test_over_http_and_alone_the_same_work_is_compared(tmp_path: Path) -> None:
    sizes = ("--clients", "4", "--requests", "8", "--prompt", "20", "--answer", "8")
    report = measured(tmp_path, *sizes, "--device", "cpu", "--shape", "tiny")
    (row,) = report["rows"]
    assert row["tokens"] == 64 and row["ratio"] == round(row["tok_s"] / row["offline_tok_s"], 3)
    assert "stages_us" not in report and "machine" in report


def test_each_word_of_a_prompt_is_one_token_and_all_ids_have_text(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 1024)
    model = from_folder(tmp_path)
    assert model.vocab_size == 1024 and all(model.token_bytes)
    assert len(model.encode_words(" ".join(WORDS))) == len(WORDS)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() == 1024


def test_clients_of_a_server_that_is_not_there_measure_nothing() -> None:
    with pytest.raises(OSError):
        load.drive(1, [b"{}"], 1, 1)


@pytest.mark.model
def test_another_server_is_measured_where_it_runs_and_its_processes_are_left_alone(tmp_path: Path) -> None:
    options = Namespace(
        device="none", clients="2", prompt=20, rate=4000.0, http_processes=1, load_processes=1, step_latency_ms=None
    )
    with Server(engine_settings(options, tmp_path), options) as server:
        report = measured(
            tmp_path,
            "--other",
            str(server.port),
            "--clients",
            "2",
            "--requests",
            "4",
            "--prompt",
            "20",
            "--answer",
            "9",
        )
        assert server.process.poll() is None
    (row,) = report["rows"]
    assert (row["clients"], row["tokens"], row["server_cpu_us"]) == (2, 4 * 9, 0)
    assert report["server"] == "another"


def test_a_folder_for_another_server_is_one_that_transformers_reads(tmp_path: Path) -> None:
    line = ["--write", "--shape", "tiny", "--out", str(tmp_path / "m")]
    subprocess.run([sys.executable, str(ROOT / "bench/engine/serving"), *line], check=True, capture_output=True)
    words = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    assert len(words.encode(" ".join(WORDS)).ids) == len(WORDS)
    told = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    assert told["tokenizer_class"] == "PreTrainedTokenizerFast" and "messages" in told["chat_template"]
    assert not list((tmp_path / "m").glob("*.safetensors"))
