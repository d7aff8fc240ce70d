"""Quantised blocks of random bytes, against ggml's layouts (ggml-common.h) worked out value by value."""

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from backend.errors import UnsupportedModel
from backend.models.checkpoints import gguf as ours

ROWS = 3


def half(raw: bytes) -> float:
    (value,) = struct.unpack("<e", raw)
    return float(value)


def nibble(byte: int, high: bool) -> int:
    return byte >> 4 if high else byte & 15


def q4_0(raw: bytes) -> list[float]:
    d, qs = half(raw[:2]), raw[2:]
    return [d * (nibble(qs[i % 16], i >= 16) - 8) for i in range(32)]


def q4_1(raw: bytes) -> list[float]:
    d, m, qs = half(raw[:2]), half(raw[2:4]), raw[4:]
    return [d * nibble(qs[i % 16], i >= 16) + m for i in range(32)]


def q8_0(raw: bytes) -> list[float]:
    return [half(raw[:2]) * q for q in struct.unpack("<32b", raw[2:])]


def scale_and_min(packed: bytes, group: int) -> tuple[int, int]:
    """Eight pairs of six bits in twelve bytes: the upper four pairs keep their high bits with the lower ones."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return (low & 15) | (packed[group - 4] >> 6 << 4), (low >> 4) | (packed[group] >> 6 << 4)


def q4_k(raw: bytes) -> list[float]:
    d, dmin, packed, qs = half(raw[:2]), half(raw[2:4]), raw[4:16], raw[16:]
    values = []
    for group in range(8):
        scale, least = scale_and_min(packed, group)
        for i in range(32):
            values.append(d * scale * nibble(qs[group // 2 * 32 + i], group % 2 == 1) - dmin * least)
    return values


def q5_k(raw: bytes) -> list[float]:
    d, dmin, packed, qh, qs = half(raw[:2]), half(raw[2:4]), raw[4:16], raw[16:48], raw[48:]
    values = []
    for group in range(8):
        scale, least = scale_and_min(packed, group)
        for i in range(32):
            q = nibble(qs[group // 2 * 32 + i], group % 2 == 1) + 16 * (qh[i] >> group & 1)
            values.append(d * scale * q - dmin * least)
    return values


def q6_k(raw: bytes) -> list[float]:
    ql, qh, scales, d = raw[:128], raw[128:192], struct.unpack("<16b", raw[192:208]), half(raw[208:])
    values = []
    for i in range(256):
        part, quarter, at = i // 128, i % 128 // 32, i % 32
        low = nibble(ql[part * 64 + quarter % 2 * 32 + at], quarter >= 2)
        high = qh[part * 32 + at] >> 2 * quarter & 3
        values.append(d * scales[i // 16] * ((low | high << 4) - 32))
    return values


BLOCKS: dict[str, tuple[Callable[[bytes], list[float]], tuple[int, ...]]] = {  # where the halves stand
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q8_0": (q8_0, (0,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}


def written(path: Path, name: str, raw: np.ndarray) -> ours.GGUFFile:  # type: ignore[type-arg]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", raw, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ours.GGUFFile(path)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_any_bytes_are_read_as_ggml_lays_them_out(name: str, tmp_path: Path) -> None:
    by_hand, halves = BLOCKS[name]
    width, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    generator = np.random.default_rng(sum(name.encode()))
    raw = generator.integers(0, 256, (ROWS, 2, size), dtype=np.uint8)
    for at in halves:  # a random half may be infinite
        raw[..., at : at + 2] = generator.normal(size=(ROWS, 2, 1)).astype("<f2").view(np.uint8)
    read = written(tmp_path / "x.gguf", name, raw.reshape(ROWS, -1)).read("t")
    assert read.shape == (ROWS, 2 * width)
    expected = [[v for block in row for v in by_hand(block.tobytes())] for row in raw]
    np.testing.assert_allclose(read, expected, rtol=1e-5, atol=1e-5)


def test_a_type_that_the_package_cannot_dequantise_is_refused_naming_the_tensor(tmp_path: Path) -> None:
    file = written(tmp_path / "x.gguf", "Q8_K", np.zeros((1, 292), np.uint8))
    with pytest.raises(UnsupportedModel, match="tensor t"):
        file.read("t")
