"""Large whole answers to clients that read slowly: they arrive whole, and wait on disk where nobody can read them."""

import asyncio
import os
from types import SimpleNamespace

import pytest
from cryptography.exceptions import InvalidTag

from gateway.configuration.bounds import Bounds
from gateway.openai.asgi_client import Client
from gateway.request.answer import delivery
from gateway.request.answer.delivery import AT_ONCE, Delivery
from gateway.request.answer.spool import PIECE, Spool
from gateway.request.stages import Answered, LastBytes
from gateway.request.telemetry import Telemetry
from tests.fakes.lab import until

TEXT = b"carl@example.org says so. "


def answer(size):
    return (TEXT * (size // len(TEXT) + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 7])
def test_what_was_put_in_comes_out(tmp_path, size):
    with Spool(tmp_path, answer(size)) as spool:
        assert b"".join(spool.pieces()) == answer(size)


def test_the_file_has_no_name_and_holds_no_text(tmp_path):
    with Spool(tmp_path, answer(3 * PIECE)) as spool:
        written = os.pread(spool._file.fileno(), 4 * PIECE, 0)
        assert len(written) > 3 * PIECE
        assert b"carl" not in written
        assert list(tmp_path.iterdir()) == []


def test_two_answers_of_the_same_text_are_not_alike(tmp_path):
    with Spool(tmp_path, answer(PIECE)) as one, Spool(tmp_path, answer(PIECE)) as other:
        assert os.pread(one._file.fileno(), PIECE, 0) != os.pread(other._file.fileno(), PIECE, 0)


@pytest.mark.parametrize("change", ["a byte", "an exchange of pieces", "the end"])
def test_a_file_that_was_changed_is_not_passed_on(tmp_path, change):
    with Spool(tmp_path, answer(2 * PIECE)) as spool:
        file, length = spool._file.fileno(), PIECE + 16
        first, second = os.pread(file, length, 0), os.pread(file, length, length)
        if change == "a byte":
            os.pwrite(file, bytes([first[9] ^ 1]), 9)
        elif change == "the end":
            os.truncate(file, 2 * length - 1)
        else:
            os.pwrite(file, second + first, 0)
        with pytest.raises(InvalidTag):
            list(spool.pieces())


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError, match="absent"):
        Spool(tmp_path / "absent", b"x")


class Slow:
    """A client that takes `quick` bytes at once, and the rest when it is let `go_on`."""

    def __init__(self, quick):
        self.go_on = asyncio.Event()
        self.body, self.ends, self._quick = b"", 0, quick
        self.client = Client({"headers": []}, asyncio.Event().wait, self.send)

    async def send(self, message):
        if len(self.body) >= self._quick:
            await self.go_on.wait()
        self.body += message["body"]
        self.ends += not message["more_body"]


async def finishing(slow, data, folder):
    answered = Answered(SimpleNamespace(client=slow.client), None, LastBytes(data), begun=True)
    task = asyncio.create_task(Delivery(None, None, None, Telemetry(), folder, Bounds()).finish(answered, None))
    await asyncio.sleep(0.1)
    return task


@pytest.mark.parametrize("quick", [0, 3 * PIECE, 1 << 30])
@pytest.mark.parametrize("size", [0, 10, AT_ONCE, AT_ONCE + 1, 9 * PIECE + 5])
async def test_the_client_gets_the_whole_answer_however_it_reads(monkeypatch, tmp_path, quick, size):
    monkeypatch.setattr(delivery, "PATIENCE_S", 0.02)
    slow = Slow(quick)
    task = await finishing(slow, answer(size), tmp_path)
    slow.go_on.set()
    await task
    assert slow.body == answer(size)
    assert slow.ends == 1


async def test_an_answer_that_waits_is_not_held_in_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(delivery, "PATIENCE_S", 0.02)
    spooled = []
    monkeypatch.setattr(delivery, "Spool", lambda folder, data: spooled.append(len(data)) or Spool(folder, data))
    slow = Slow(2 * PIECE)
    box = LastBytes(answer(20 * PIECE))
    answered = Answered(SimpleNamespace(client=slow.client), None, box, begun=True)
    task = asyncio.create_task(Delivery(None, None, None, Telemetry(), tmp_path, Bounds()).finish(answered, None))
    await until(lambda: spooled)
    assert spooled == [18 * PIECE]
    assert box.taken() == b""
    slow.go_on.set()
    await task
    assert slow.body == answer(20 * PIECE)


async def test_where_the_disk_takes_no_file_the_answer_waits_in_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(delivery, "PATIENCE_S", 0.02)
    slow = Slow(0)
    task = await finishing(slow, answer(9 * PIECE), tmp_path / "absent")
    slow.go_on.set()
    await task
    assert slow.body == answer(9 * PIECE)
