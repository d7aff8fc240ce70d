"""Files are read straight into their places, whatever their types, and a table that lies is found out."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints import direct
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.direct import fill, stored_tensors
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from tests.backend.tiny import write_folder


def write_raw(folder: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


@pytest.mark.parametrize("stretch", [1, 7, 64, 1 << 20])
def test_every_byte_arrives_whatever_the_stretch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch: int) -> None:
    tensors = {"a": torch.randn(5, 3), "b": torch.randn(17).half(), "c": torch.randn(2, 2).to(torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr(direct, "STRETCH", stretch)
    stored = {s.name: s for s in stored_tensors(tmp_path)}
    places = {name: torch.full_like(t, float("nan")) for name, t in tensors.items()}
    seen: list[tuple[int, int]] = []
    fill([(stored[name], places[name]) for name in tensors], lambda done, total: seen.append((done, total)))
    for name, tensor in tensors.items():
        assert torch.equal(places[name], tensor)
    assert seen[-1] == (60 + 34 + 8, 60 + 34 + 8)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_progress_counts_every_byte_of_a_checkpoint_once(tmp_path: Path, model: Decoder) -> None:
    folder = write_folder(tmp_path / "m", model)
    for dtype in ("float32", "bfloat16"):  # read in place, and by way of a buffer
        seen: list[tuple[int, int]] = []
        load_model(Checkpoint(folder), dtype, on_progress=lambda done, total, seen=seen: seen.append((done, total)))
        size = sum(p.numel() * 4 for p in model.parameters())
        assert seen[-1] == (size, size)
        assert all(0 < done <= total == size for done, total in seen)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{]", "header is not JSON"),
        ([1], "not an object"),
        ({"a": 1}, "tensor a is not described"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "tensor a is not described"),
        ({"a": {"dtype": "I4", "shape": [2], "data_offsets": [0, 8]}}, "tensor a is I4"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "is not where its file says"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}, "is not where its file says"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [64, 72]}}, "is not where its file says"),
        ({"a": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 1 << 62]}}, "is not where its file says"),
    ],
    ids=str,
)
def test_a_table_that_lies_is_corrupt(tmp_path: Path, header: Any, message: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=message):
        stored_tensors(write_raw(tmp_path, header, b"12345678"))


@pytest.mark.parametrize("content", [b"", b"1234", struct.pack("<Q", 1 << 62) + b"{}", struct.pack("<Q", 500) + b"{}"])
def test_a_header_that_cannot_be_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match="its header is said to be"):
        stored_tensors(tmp_path)


def test_a_file_that_shrinks_after_its_table_was_read_is_corrupt(tmp_path: Path) -> None:
    save_file({"a": torch.randn(100)}, tmp_path / "model.safetensors")
    stored = stored_tensors(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(CorruptCheckpoint, match="ends early"):
        fill([(stored[0], torch.empty(100))])
