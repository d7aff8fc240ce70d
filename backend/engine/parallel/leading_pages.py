"""The caches of all ranks as one, for blocks that travel: each rank has some layers, and of these some heads.

What travels has all heads of a layer, in their order, so that it does not tell how many ranks read it: a model on two
ranks takes what one on a single card computed, where the mode makes the same bits of both.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from backend.engine.cache.window_handle import WindowHandle
from backend.engine.cache.windows import WindowUnusable
from backend.engine.core.runner import BlockBytes, Moment, PendingBlocks, PlacedBlocks, Window
from backend.engine.parallel import step_messages as say
from backend.engine.parallel.followers import Followers
from backend.models.config import ModelConfig
from backend.models.layer_groups import LayerGroups, one_table
from backend.parallel.shard import Stage


@dataclass(frozen=True, slots=True)
class Division:
    """How a cache is divided. ranks: of each stage. copies: neighbours that hold the same heads. layers: of the whole
    model. block_size: tokens. The first rank of stage s is number s * ranks of all."""

    ranks: int
    copies: int
    stages: int
    layers: int
    block_size: int

    @classmethod
    def of_share(cls, share: ModelConfig, block_size: int) -> "Division":
        """share: of any rank."""
        return cls(
            ranks=share.shard.size,
            copies=share.kv_copies if share.latent is None else share.shard.size,
            stages=share.stage.count,
            layers=share.all_layers or share.num_layers,
            block_size=block_size,
        )

    @property
    def parts(self) -> int:
        """Different ones of a layer."""
        return self.ranks // self.copies

    def place(self, layer: int) -> tuple[int, int]:
        """Number of the first rank that has this layer, and which of its layers it is."""
        for stage in range(self.stages):
            begin, end = Stage(stage, self.stages).layers(self.layers)
            if begin <= layer < end:
                return stage * self.ranks, layer - begin
        raise ValueError(f"layer {layer} is not one of {self.layers}; give one from 0 to {self.layers - 1}")

    def joined(self, parts: Items[bytes], blocks: int) -> bytes:
        """All heads of so many blocks, of the parts' heads of them."""
        if len(parts) == 1:
            return parts[0]
        tokens = blocks * self.block_size
        return np.concatenate([_rows(part, tokens) for part in parts], axis=1).tobytes()

    def divided(self, whole: bytes, blocks: int) -> list[bytes]:
        """The reverse."""
        if self.parts == 1:
            return [whole]
        columns = np.split(_rows(whole, blocks * self.block_size), self.parts, axis=1)
        return [np.ascontiguousarray(own).tobytes() for own in columns]


def _rows(content: bytes, tokens: int) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    return np.frombuffer(content, dtype=np.uint8).reshape(tokens, len(content) // tokens)


@dataclass
class LeadingPages:
    """A `runner.BlockBytes`. own: rank 0's, as it is now. It has no windows: each rank would need one of its own, and
    whoever maps them as many."""

    own: Callable[[], BlockBytes | None]
    division: Division
    followers: Followers
    _number: int = field(default=0)

    @property
    def _pages(self) -> BlockBytes:
        pages = self.own()
        if pages is None:
            raise RuntimeError("the blocks of this model cannot travel")
        return pages

    @property
    def layers(self) -> int:
        return self.division.layers

    @property
    def groups(self) -> LayerGroups:
        """Those of all ranks; stages share one table (`engine_config.groups_of`)."""
        return self._pages.groups if self.division.stages == 1 else one_table(self.division.layers)

    @property
    def block_bytes(self) -> tuple[int, int]:
        keys, values = self._pages.block_bytes
        return keys * self.division.parts, values * self.division.parts

    @property
    def dtype(self) -> str:
        return self._pages.dtype

    def now(self) -> Moment:
        return self._pages.now()

    def read(self, layer: int, blocks: list[int], moment: Moment) -> PendingBlocks:
        """The other ranks read behind all steps that they were told of, which are those that rank 0 has launched."""
        first, there = self.division.place(layer)
        holders = [first + part * self.division.copies for part in range(self.division.parts)]
        self._number += 1
        for rank in holders:
            if rank:
                self.followers.send_to(rank, say.ReadBlocks(self._number, there, blocks))
        own = self._pages.read(there, blocks, moment) if 0 in holders else None
        return _ReadOfAll(self, holders, self._number, len(blocks), own)

    def write(self, layer: int, blocks: list[int], keys: bytes, values: bytes) -> None:
        first, there = self.division.place(layer)
        parts = zip(self.division.divided(keys, len(blocks)), self.division.divided(values, len(blocks)), strict=True)
        for part, (own_keys, own_values) in enumerate(parts):
            for copy in range(self.division.copies):
                rank = first + part * self.division.copies + copy
                if rank:
                    self.followers.send_to(rank, say.WriteRankBlocks(there, blocks, own_keys, own_values))
                else:
                    self._pages.write(there, blocks, own_keys, own_values)

    def make_window(self) -> Window:
        raise WindowUnusable("a model on several ranks has no window")

    def open_window(self, handle: WindowHandle) -> Window:
        raise WindowUnusable("a model on several ranks maps no window")

    def read_into(self, layer: int, blocks: list[int], moment: Moment, window: Window, slot: int) -> PlacedBlocks:
        raise WindowUnusable("a model on several ranks has no window")

    def write_from(self, layer: int, blocks: list[int], window: Window, slot: int, checksum: int) -> bool:
        raise WindowUnusable("a model on several ranks maps no window")

    def clear(self, window: Window, slot: int, size: int) -> None:
        raise WindowUnusable("a model on several ranks has no window")

    def left_in(self, window: Window, slot: int, size: int) -> int:
        raise WindowUnusable("a model on several ranks has no window")


@dataclass(slots=True)
class _ReadOfAll:
    """A `runner.PendingBlocks`. holders: ranks, one for each part. own: rank 0's, None if it holds no part."""

    pages: LeadingPages
    holders: list[int]
    number: int
    blocks: int
    own: PendingBlocks | None

    @property
    def arrived(self) -> bool:
        """At rank 0; the others are asked once it has."""
        return self.own is None or self.own.arrived

    def take(self) -> tuple[bytes, bytes]:
        followers, division = self.pages.followers, self.pages.division
        for rank in self.holders:
            if rank:
                followers.send_to(rank, say.TakeRead(self.number))
        found = []
        for rank in self.holders:
            answer = followers.answer_of(rank) if rank else None
            if isinstance(answer, say.RankBlocks):
                found.append((answer.keys, answer.values))
            elif answer is None and self.own is not None:
                found.append(self.own.take())
            else:
                raise RuntimeError(f"rank {rank} did not send the blocks that were asked of it")
        keys, values = zip(*found, strict=True)
        return division.joined(keys, self.blocks), division.joined(values, self.blocks)
