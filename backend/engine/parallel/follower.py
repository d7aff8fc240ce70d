"""What a rank other than 0 does: run what rank 0 runs, in the same order, on its share of the model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from backend.engine.cache.sleeper import Sleeper
from backend.engine.core.host_tier import HostClear, HostLoad, HostOperation, HostPages, HostSettle, HostStore
from backend.engine.core.runner import PendingBlocks, Runner
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.speculation import Drafted
from backend.engine.core.token_masks import Allowed
from backend.engine.parallel.mirrors import Mirrors
from backend.engine.parallel.step_messages import (
    Copy,
    Done,
    FromFollower,
    HostForget,
    HostResidue,
    Launch,
    Masks,
    PlaceAdapter,
    Prepare,
    RankBlocks,
    ReadBlocks,
    Refused,
    Residue,
    Scrub,
    Sleep,
    TakeRead,
    ToFollower,
    Verify,
    Wake,
    WriteRankBlocks,
)
from backend.errors import AdapterRefused, BackendError, CannotSleep


class Places(Protocol):
    """Slots of adapters, see `engine.adapters.AdapterPlaces`."""

    def place(self, slot: int, path: str, digest: str) -> object: ...

    def clear(self, slot: int) -> None: ...


class Leader(Protocol):
    """Rank 0."""

    def receive(self) -> ToFollower:
        """Waits for the next message."""
        ...

    def answer(self, message: FromFollower) -> None: ...


@dataclass
class Follower:
    """runner: of the same kind as rank 0's, with as many blocks. sleeper: None if it cannot sleep.
    places: None if it takes no adapters. host: None if it has no host tier."""

    runner: Runner
    sleeper: Sleeper | None
    leader: Leader
    places: Places | None = None
    host: HostPages | None = None
    asleep: bool = False
    _mirrors: Mirrors = field(default_factory=Mirrors)
    _reads: dict[int, PendingBlocks] = field(default_factory=dict)

    def run(self) -> None:
        """Until the leader closes the connection, which `Leader.receive` raises for."""
        while True:
            self.handle(self.leader.receive())

    def handle(self, message: ToFollower) -> None:
        match message:
            case Launch():
                self._launch(message)
            case Verify():
                self._verify(message)
            case Prepare():
                self.runner.prepare()
            case Copy(pairs):
                self.runner.copy(pairs)
            case Scrub(gone, blocks):
                self._mirrors.forget(gone)
                self.runner.scrub(blocks)
            case Residue(blocks):
                self.leader.answer(Done(self.runner.residue(blocks)))
            case HostStore() | HostLoad() | HostSettle() | HostClear() | HostResidue() | HostForget():
                self._on_host(message)
            case PlaceAdapter():
                self._turn(lambda: self._place(message))
            case ReadBlocks() | TakeRead() | WriteRankBlocks():
                self._on_blocks(message)
            case Sleep():
                self._turn(self._sleep)
            case Wake():
                self._turn(self._wake)
            case Masks():
                raise RuntimeError("masks came without a step that asks for them")

    def _on_host(self, message: HostOperation | HostResidue | HostForget) -> None:
        if self.host is None:
            raise RuntimeError("this rank has no host tier")
        match message:
            case HostResidue(slots):
                self.leader.answer(Done(self.host.residue(slots)))
            case HostForget():
                self.host.forget()
            case _:
                self.host.do(message)

    def _on_blocks(self, message: ReadBlocks | TakeRead | WriteRankBlocks) -> None:
        pages = self.runner.pages
        if pages is None:
            raise RuntimeError("the blocks of this rank cannot travel")
        match message:
            case ReadBlocks(number, layer, blocks):
                self._reads[number] = pages.read(layer, blocks, pages.now())
            case TakeRead(number):
                self.leader.answer(RankBlocks(*self._reads.pop(number).take()))
            case WriteRankBlocks(layer, blocks, keys, values):
                pages.write(layer, blocks, keys, values)

    def _launch(self, message: Launch) -> None:
        self._mirrors.forget(message.gone)
        self._mirrors.admit(message.admitted)
        batch = [Scheduled(*each) for each in self._mirrors.read(message.words)]
        self.runner.launch(batch, self._masks if message.masked else None)

    def _masks(self) -> Allowed:
        """Rank 0's, once they come; before them it may have other work to do, in the order of its own."""
        while not isinstance(message := self.leader.receive(), Masks):
            self.handle(message)
        words = np.frombuffer(message.bits, dtype=np.int32).copy()
        rows = len(message.ids)
        return Allowed(message.ids, torch.from_numpy(words).view(rows, -1) if rows else torch.empty(0, 0).int())

    def _verify(self, message: Verify) -> None:
        sequences = [sequence for sequence, _, _ in self._mirrors.read(message.words)]
        allowed = [_rows(bits, 1 + len(own)) for bits, own in zip(message.allowed, message.guesses, strict=True)]
        self.runner.verify([Drafted(*each) for each in zip(sequences, message.guesses, allowed, strict=True)])
        self._mirrors.forget(message.gone)

    def _place(self, message: PlaceAdapter) -> int:
        if self.places is None:
            raise AdapterRefused("this rank takes no adapters; start all ranks with the same options")
        if message.folder:
            self.places.place(message.slot, message.folder, message.digest)
        else:
            self.places.clear(message.slot)
        return 0

    def _turn(self, turn: Callable[[], int]) -> None:
        try:
            self.leader.answer(Done(turn()))
        except BackendError as error:
            self.leader.answer(Refused(type(error).__name__, str(error)))

    def _sleep(self) -> int:
        if self.asleep:
            return 0
        if self.sleeper is None:
            raise CannotSleep(
                "this rank cannot release its memory; end the backend instead, and start another when it is needed"
            )
        self._mirrors.forget_all()
        given = self.sleeper.sleep(lambda done, total: None)
        self.asleep = True
        return given

    def _wake(self) -> int:
        if self.asleep and self.sleeper is not None:
            self.sleeper.wake(lambda done, total: None)
            self.asleep = False
        return 0


def _rows(bits: bytes, count: int) -> Tensor | None:
    """As `Verify.allowed` has them, [count, words]."""
    return torch.from_numpy(np.frombuffer(bits, dtype=np.int32).copy()).view(count, -1) if bits else None
