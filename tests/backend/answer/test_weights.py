"""A backend reports the digest of the weights that it loaded, and none once the files are others."""

import asyncio
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from backend.answer.weights import MAX_SIGNATURE, Stopped, Weights, measure
from backend.wire import is_of_checkpoint
from tests.backend.scripted import Scripted


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "model"))


async def measured(path: Path) -> Weights:
    weights = Weights(path)
    weights.begin()
    await weights.measure()
    return weights


async def test_the_report_names_each_file_with_its_digest(copied: Path) -> None:
    (copied / "README.md").write_text("not read by the engine")
    report = await (await measured(copied)).report()
    assert report.sha256 == measure(copied).sha256
    assert report.files["config.json"] == sha256((copied / "config.json").read_bytes()).hexdigest()
    assert "model.safetensors" in report.files
    assert "README.md" not in report.files
    assert report.signature is report.signer_key is report.why is None


def flip(path: Path) -> None:
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)


def swap(path: Path) -> None:
    other = path.with_name("other.safetensors")
    shutil.copyfile(path / "model.safetensors", other)
    os.replace(other, path / "model.safetensors")


def keep_times(path: Path) -> None:
    """As who wants to hide a change: size and modification time stay."""
    before = (path / "model.safetensors").stat()
    flip(path)
    os.utime(path / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: list[Callable[[Path], None]] = [
    flip,
    swap,
    keep_times,
    lambda path: (path / "model.safetensors").unlink(),
    lambda path: (path / "more.safetensors").write_bytes(b"more"),
]


@pytest.mark.parametrize("change", CHANGES, ids=["a flipped byte", "a swap", "hidden", "a missing file", "one more"])
async def test_files_that_change_after_the_load_leave_no_digest(copied: Path, change: Callable[[Path], None]) -> None:
    weights = await measured(copied)
    change(copied)
    report = await weights.report()
    assert (report.sha256, report.why, report.files) == (None, "changed", {})


async def test_files_that_change_while_the_engine_loads_leave_no_digest(copied: Path) -> None:
    weights = Weights(copied)
    weights.begin()
    flip(copied)
    assert await weights.measure() is None
    assert (await weights.report()).why == "changed"


async def test_a_signature_and_its_key_are_handed_on_and_do_not_count_as_weights(copied: Path) -> None:
    plain = measure(copied).sha256
    (copied / "model.sig").write_text('{"a": "bundle"}')
    (copied / "model.pub").write_text("a key")
    report = await (await measured(copied)).report()
    assert (report.sha256, report.signature, report.signer_key) == (plain, '{"a": "bundle"}', "a key")


@pytest.mark.parametrize("content", [b"x" * (MAX_SIGNATURE + 1), b"\xff\xfe"])
async def test_a_signature_that_is_too_large_or_no_text_is_left_out(copied: Path, content: bytes) -> None:
    (copied / "model.sig").write_bytes(content)
    assert (await (await measured(copied)).report()).signature is None


async def test_drawn_and_unreadable_weights_have_no_digest(tmp_path: Path) -> None:
    assert (await (await measured(tmp_path / "gone.gguf")).report()).why == "unreadable"
    weights = Weights(None)
    assert await weights.measure() is None
    assert (await weights.report()).why == "dummy"


def test_a_measurement_ends_when_the_backend_does(copied: Path) -> None:
    with pytest.raises(Stopped):
        measure(copied, stop=lambda: True)


async def test_a_report_waits_for_the_measurement(copied: Path) -> None:
    weights = Weights(copied)
    weights.begin()
    asked = asyncio.create_task(weights.report())
    await asyncio.sleep(0)
    assert not asked.done()
    assert not weights.is_known
    await weights.measure()
    assert (await asked).sha256 == measure(copied).sha256


async def test_the_server_answers_503_until_the_digest_is_known(copied: Path, tmp_path: Path) -> None:
    backend = Scripted(tmp_path, "plain")
    backend.api.weights = Weights(copied)
    assert (await backend.http.get("/weights")).status_code == 503
    backend.api.weights = await measured(copied)
    assert (await backend.http.get("/weights")).json()["sha256"] == measure(copied).sha256


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("model.safetensors", True), ("1_Pooling/config.json", True), ("additional_chat_templates/rag.jinja", True),
     ("README.md", False), ("original/model.safetensors", False), ("a/b/model.safetensors", False),
     ("../model.safetensors", False), ("model.sig", False)],
)  # fmt: skip
def test_what_the_engine_reads_is_told_by_its_name(name: str, is_one: bool) -> None:
    assert is_of_checkpoint(name) is is_one
