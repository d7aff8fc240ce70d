"""What answers say they came from changes with any byte of the checkpoint, and with how they are computed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from backend.answer.fingerprint import fingerprint as fingerprint_of_digest
from backend.answer.weights import measure
from backend.engine_config import EngineConfig
from backend.wire import OUR_FINGERPRINT, fingerprint_of, same_weights
from tests.backend.scripted import Scripted, request


def checkpoint_digest(path: Path) -> str:
    return measure(path).sha256


def fingerprint(path: Path, config: EngineConfig) -> str:
    return fingerprint_of_digest(checkpoint_digest(path), config)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "another name"))


def test_the_same_checkpoint_elsewhere_has_the_same_one(folder: Path, copied: Path) -> None:
    config = EngineConfig(model="x")
    assert fingerprint(folder, config) == fingerprint(copied, config)
    assert OUR_FINGERPRINT.fullmatch(fingerprint(folder, config))
    (copied / "README.md").write_text("of no consequence")
    assert fingerprint(folder, config) == fingerprint(copied, config)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_one_byte_makes_it_another(folder: Path, copied: Path, name: str) -> None:
    content = bytearray((copied / name).read_bytes())
    content[-2] ^= 1
    (copied / name).write_bytes(content)
    one, other = (fingerprint(path, EngineConfig(model="x")) for path in (folder, copied))
    assert same_weights(one, other) is False
    assert one[-8:] == other[-8:]


def test_a_file_more_less_or_by_another_name_makes_it_another(folder: Path, copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "model-1.safetensors")
    renamed = checkpoint_digest(copied)
    (copied / "model-2.safetensors").write_bytes(b"")
    more = checkpoint_digest(copied)
    (copied / "model-1.safetensors").unlink()
    assert len({checkpoint_digest(folder), renamed, more, checkpoint_digest(copied)}) == 4


def test_the_name_of_a_single_file_says_nothing(tmp_path: Path) -> None:
    for name, content in (("a.gguf", b"weights"), ("b.gguf", b"weights"), ("c.gguf", b"Weights")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (checkpoint_digest(tmp_path / name) for name in ("a.gguf", "b.gguf", "c.gguf"))
    assert a == b != c


def test_how_it_is_computed_shows_and_is_not_taken_for_other_weights(folder: Path) -> None:
    plain, half = (fingerprint(folder, EngineConfig(model="x", dtype=dtype)) for dtype in ("float32", "bfloat16"))
    assert plain != half
    assert same_weights(plain, half) is True
    one, two = (fingerprint(folder, EngineConfig(model="x", tensor_parallel_size=size)) for size in (1, 2))
    assert one == plain != two


@pytest.mark.parametrize(("size", "same"), [(2, True), (4, True), (8, True), (3, False), (16, False)])
def test_in_deterministic_mode_the_number_of_ranks_shows_where_it_changes_bits(
    folder: Path, size: int, same: bool
) -> None:
    one, more = (
        fingerprint(folder, EngineConfig(model="x", batch_invariant=True, tensor_parallel_size=n)) for n in (1, size)
    )
    assert (one == more) is same


@pytest.mark.parametrize("value", [None, 5, "", "two words", "x" * 65, ["fp_1"], "é"])
def test_what_is_not_one_word_is_none(value: Any) -> None:
    assert fingerprint_of({"system_fingerprint": value}) is None
    assert fingerprint_of({}) is None


@pytest.mark.parametrize("template", ["plain", "hermes"])
async def test_every_answer_says_it_whole_and_in_each_chunk(template: str, tmp_path: Path) -> None:
    backend = Scripted(tmp_path, template)
    backend.engine.says("the sea")
    for known in (None, "fp_0011223344556677_00112233"):
        backend.api.fingerprint = known
        for path, body in (
            ("/v1/chat/completions", request()),
            ("/v1/completions", {"model": "scripted", "prompt": "x"}),
        ):
            whole = (await backend.http.post(path, json=body)).json()
            assert whole.get("system_fingerprint") == known
            streamed = await backend.http.post(path, json={**body, "stream": True})
            *events, _, _ = streamed.text.split("\n\n")
            told = [json.loads(event.removeprefix("data: ")).get("system_fingerprint") for event in events]
            assert set(told) == {known}
