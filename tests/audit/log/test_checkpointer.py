import threading
import time

import pytest

from audit.errors import SignerError
from audit.log.checkpointer import Cadence, Checkpointer
from audit.storage.store import SignedCheckpoint
from audit.tree.merkle import Frontier, leaf_hash
from audit.tree.tlog_checkpoint import open_checkpoint
from tests.audit.conftest import Home


def grown_to(size: int) -> Frontier:
    frontier = Frontier()
    for number in range(size):
        frontier.append(leaf_hash(b"%d" % number))
    return frontier


class Shelf:
    """Where a test's checkpoints go."""

    def __init__(self, home: Home, cadence: Cadence, signer: object = None) -> None:
        self.signed: list[SignedCheckpoint] = []
        self.arrived = threading.Semaphore(0)
        self.checkpointer = Checkpointer(signer or home.signer, cadence, self._take)
        self.checkpointer.start()

    def _take(self, checkpoint: SignedCheckpoint) -> None:
        self.signed.append(checkpoint)
        self.arrived.release()

    def sizes(self) -> list[tuple[str, int]]:
        return [(checkpoint.tenant, checkpoint.size) for checkpoint in self.signed]


def test_what_is_signed_is_the_root_of_the_head(home: Home) -> None:
    shelf = Shelf(home, Cadence(every_s=0.01))
    shelf.checkpointer.grown({"acme": grown_to(5)})
    assert shelf.arrived.acquire(timeout=5)
    shelf.checkpointer.stop()
    (signed,) = shelf.signed
    checkpoint = open_checkpoint(signed.note, f"{home.key.name}/acme", home.key.public_key)
    assert (checkpoint.size, checkpoint.root) == (5, grown_to(5).root())


def test_heads_that_follow_within_the_second_share_one_checkpoint(home: Home) -> None:
    shelf = Shelf(home, Cadence(every_s=0.5))
    for size in range(1, 20):
        shelf.checkpointer.grown({"acme": grown_to(size)})
    assert shelf.arrived.acquire(timeout=5)
    shelf.checkpointer.stop()
    assert shelf.sizes() == [("acme", 19)]


def test_a_tree_full_of_unsigned_records_does_not_drag_the_others_along(home: Home) -> None:
    shelf = Shelf(home, Cadence(every_s=60, records=10))
    shelf.checkpointer.grown({"globex": grown_to(1)})
    shelf.checkpointer.grown({"acme": grown_to(12)})
    assert shelf.arrived.acquire(timeout=5)
    assert shelf.sizes() == [("acme", 12)]
    shelf.checkpointer.stop()
    assert shelf.sizes() == [("acme", 12), ("globex", 1)]


def test_records_are_counted_from_the_last_checkpoint_on(home: Home) -> None:
    shelf = Shelf(home, Cadence(every_s=60, records=10))
    shelf.checkpointer.grown({"acme": grown_to(10)})
    assert shelf.arrived.acquire(timeout=5)
    shelf.checkpointer.grown({"acme": grown_to(19)})
    assert not shelf.arrived.acquire(timeout=0.05)
    shelf.checkpointer.grown({"acme": grown_to(20)})
    assert shelf.arrived.acquire(timeout=5)
    shelf.checkpointer.stop()
    assert shelf.sizes() == [("acme", 10), ("acme", 20)]


class HangingSigner:
    """Answers when it is let go, like a key service behind a dead connection."""

    def __init__(self, home: Home) -> None:
        self.name = home.signer.name
        self.public_key = home.signer.public_key
        self.let_go = threading.Event()
        self._signer = home.signer

    def sign(self, message: bytes) -> bytes:
        self.let_go.wait(10)
        return self._signer.sign(message)


def test_a_signer_that_hangs_is_trouble_like_one_that_fails(home: Home) -> None:
    signer = HangingSigner(home)
    shelf = Shelf(home, Cadence(every_s=0.01, signer_grace_s=0.3), signer)
    shelf.checkpointer.grown({"acme": grown_to(1)})
    assert shelf.checkpointer.trouble is None
    late = time.monotonic() + 10
    while shelf.checkpointer.trouble is None:
        assert time.monotonic() < late
        time.sleep(0.01)
    signer.let_go.set()
    assert shelf.arrived.acquire(timeout=5)
    shelf.checkpointer.stop()
    assert shelf.checkpointer.trouble is None


class BrokenSigner(HangingSigner):
    def sign(self, message: bytes) -> bytes:
        raise ZeroDivisionError("not one of ours")


def test_whatever_a_signer_raises_the_thread_lives_and_tries_again(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf(home, Cadence(every_s=0.01), BrokenSigner(home))
    shelf.checkpointer.grown({"acme": grown_to(1)})
    deadline = time.monotonic() + 5
    while caplog.text.count("could not be signed") < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    shelf.checkpointer.stop()
    assert shelf.signed == []
    assert caplog.text.count("could not be signed") >= 2


class MoodySigner(HangingSigner):
    up = False

    def sign(self, message: bytes) -> bytes:
        if not self.up:
            raise SignerError("no route to the signer")
        return self._signer.sign(message)


def test_an_outage_of_the_signer_is_reported_when_it_exceeds_the_grace_and_when_it_ends(home: Home) -> None:
    signer = MoodySigner(home)
    told: list[bool] = []
    over, ended = threading.Event(), threading.Event()

    def delayed(seconds: int, resumed: bool) -> None:
        told.append(resumed)
        (ended if resumed else over).set()

    cadence = Cadence(every_s=0.01, signer_grace_s=0.05)
    checkpointer = Checkpointer(signer, cadence, lambda signed: None, delayed)
    checkpointer.start()
    checkpointer.grown({"acme": grown_to(1)})
    assert over.wait(5)
    signer.up = True
    assert ended.wait(5)
    checkpointer.stop()
    assert told == [False, True], "once each, however often it was tried"


def test_a_signer_that_answers_too_late_is_reported_as_well(home: Home) -> None:
    signer, told, reported = HangingSigner(home), list[bool](), threading.Event()

    def delayed(seconds: int, resumed: bool) -> None:
        told.append(resumed)
        reported.set()

    checkpointer = Checkpointer(signer, Cadence(every_s=0.01, signer_grace_s=0.05), lambda signed: None, delayed)
    checkpointer.start()
    checkpointer.grown({"acme": grown_to(1)})
    time.sleep(0.1)
    signer.let_go.set()
    assert reported.wait(5)
    checkpointer.stop()
    assert told == [True]
