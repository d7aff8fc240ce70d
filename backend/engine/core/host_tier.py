"""A second tier of the prefix cache in the host's memory: which blocks it holds, and when a copy pays.

A named block that the device's cache evicts is copied to a slot here, under the same name, and copied back when a
sequence begins with it (as in vLLM's KV offloading and SGLang's HiCache). Only names and slots are kept here; bytes are
moved by `HostPages`, which does the operations of `HostTier.todo` in order.

A preempted sequence is swapped in the same way: the names of its blocks are kept for it (`keep`), so that what the
device evicts of them has a place here until it returns.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

RETRY = 64  # decisions against a copy, after which one is made all the same, to measure again
MEMORY = 0.8  # weight of what was measured before in a rate


class HostStore(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Copy (block, slot) each, behind the steps in flight and before the next."""

    pairs: list[tuple[int, int]]


class HostLoad(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Copy `stores`, (block, slot) each, then `pairs`, (slot, block) each, behind the steps in flight and the copies
    asked for before. Steps and stores do not wait for it: none of its blocks and slots is used until it is settled."""

    number: int
    stores: list[tuple[int, int]]
    pairs: list[tuple[int, int]]


class HostSettle(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What comes next on the device waits for that load. Once for each load."""

    number: int


class HostClear(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Zero slots, behind the copies under way."""

    slots: list[int]


HostOperation = HostStore | HostLoad | HostSettle | HostClear


class HostPages(Protocol):
    """The bytes of the slots: of one rank, or, led by the first, of all."""

    @property
    def slot_bytes(self) -> int:
        """On one rank."""
        ...

    def do(self, operation: HostOperation) -> None: ...

    def arrived(self, number: int) -> float | None:
        """Seconds that a load took; None while it is under way."""
        ...

    def residue(self, slots: list[int]) -> int:
        """Bytes of them that are not zero. Waits for the copies under way."""
        ...

    def forget(self) -> None:
        """Zero every slot, and give back what memory can be taken again without fail. No load is under way."""
        ...


class Load:
    """A sequence's blocks on their way from the host.

    Attributes:
        number: identifies it. names: of the blocks. slots: that it reads or writes. size: bytes. over: it has
            arrived, or is given up.
    """

    __slots__ = ("names", "number", "over", "size", "slots")

    def __init__(self, number: int, names: list[bytes], slots: set[int], size: int) -> None:
        self.number = number
        self.names = names
        self.slots = slots
        self.size = size
        self.over = False


class Rate:
    """Amount a second, of which old measurements are forgotten."""

    def __init__(self) -> None:
        self._amount = self._seconds = 0.0

    def take(self, amount: float, seconds: float) -> None:
        self._amount = MEMORY * self._amount + amount
        self._seconds = MEMORY * self._seconds + seconds

    @property
    def value(self) -> float | None:
        """None before anything was measured."""
        return self._amount / self._seconds if self._seconds > 0 else None


class HostTier:
    """Names of `slots` blocks, the least recently used of which makes room for another.

    Args:
        block_bytes: of one block, on one rank. block_size: tokens of one. now: seconds, monotonic. tables: blocks for
            the same tokens, of layers that keep them all.
    """

    def __init__(
        self,
        slots: int,
        block_bytes: int,
        block_size: int,
        now: Callable[[], float] = time.monotonic,
        *,
        tables: int = 1,
    ) -> None:
        self.slots, self.block_bytes, self.block_size = slots, block_bytes, block_size
        self._bytes_of_tokens = tables * block_bytes  # of `block_size` tokens, where they are many
        self.todo: list[HostOperation] = []  # before the next step, in order
        self.loads: dict[int, Load] = {}  # under way
        self.stored = self.loaded = 0  # blocks copied, out and in
        self.hits = 0  # tokens
        self.copying, self.computing = Rate(), Rate()  # bytes a second; prompt tokens a second
        self._now = now
        self._free = list(range(slots))
        self._held: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()  # name -> slot, tokens; oldest first
        self._kept: dict[bytes, tuple[int, bytes]] = {}  # the same of those that swapped sequences return to
        self._wanted: Counter[bytes] = Counter()  # names that are kept, here already or on the device still
        self._busy: set[int] = set()  # slots of loads under way, which are used last
        self._refusals = 0
        self._numbers = 0
        self._begun: deque[tuple[float, int]] = deque()  # steps in flight: when, and prompt tokens, 0 for few
        self._ended = 0.0

    @property
    def used(self) -> int:
        return self.slots - len(self._free)

    @property
    def stats(self) -> dict[str, int]:
        """Fields of `progress.Stats`."""
        return {
            "host_used_blocks": self.used,
            "host_blocks": self.slots,
            "host_hits": self.hits,
            "host_bytes_stored": self.stored * self.block_bytes,
            "host_bytes_loaded": self.loaded * self.block_bytes,
        }

    def holds(self, name: bytes, tokens: bytes) -> bool:
        """Whether that block is here. tokens: against a hash that collides."""
        found = self._held.get(name) or self._kept.get(name)
        return found is not None and found[1] == tokens

    def pays(self, copies: int = 1) -> bool:
        """Whether to copy a block so many times is faster than to compute it, as far as both have been measured."""
        copying, computing = self.copying.value, self.computing.value
        if copying is None or computing is None:
            return True
        if copies * self._bytes_of_tokens * computing < self.block_size * copying:
            return True
        self._refusals += 1
        return self._refusals % RETRY == 0

    def admit(self, name: bytes, tokens: bytes) -> int | None:
        """The slot to which a block that the device evicts is to be copied; None: it is not worth it, is here already,
        or has no room."""
        wanted = name in self._wanted
        if name in self._held:
            self._held.move_to_end(name)
            return None
        if name in self._kept or not (wanted or self.pays()):
            return None
        if not self._free:
            if not self._held or next(iter(self._held.values()))[0] in self._busy:
                return None
            self._free.append(self._held.popitem(last=False)[1][0])  # what was in it is overwritten whole
        slot = self._free.pop()
        (self._kept if wanted else self._held)[name] = slot, tokens
        self.stored += 1
        return slot

    def store(self, block: int, slot: int) -> None:
        """To be done before the next step."""
        if self.todo and isinstance(last := self.todo[-1], HostStore):
            last.pairs.append((block, slot))
        else:
            self.todo.append(HostStore([(block, slot)]))

    def underway(self, names: Iterable[bytes]) -> Load | None:
        """A load that brings one of them."""
        if not self.loads:
            return None
        wanted = set(names)
        return next((load for load in self.loads.values() if not wanted.isdisjoint(load.names)), None)

    def load(
        self, names: list[bytes], claim: Callable[[], tuple[int, bytes | None, bytes]], most: int | None = None
    ) -> tuple[Load, list[int]]:
        """Begin to bring these blocks, which are all here. claim: gives a block of the device, and name and tokens of
        what it held until then. most: blocks of tokens that they serve, where several are of the same tokens. Returns
        the blocks that they are brought to as well."""
        for name in reversed(names):  # the start of a prompt is the last to go
            if name in self._held:
                self._held.move_to_end(name)
        pairs, stores, blocks = [], [], []
        slots = [(self._held.get(name) or self._kept[name])[0] for name in names]
        self._busy.update(slots)
        for slot in slots:
            block, evicted, tokens = claim()
            blocks.append(block)
            pairs.append((slot, block))
            if evicted is not None and (place := self.admit(evicted, tokens)) is not None:
                stores.append((block, place))
                self._busy.add(place)
        self._numbers += 1
        load = Load(self._numbers, names, {*slots, *(slot for _, slot in stores)}, len(names) * self.block_bytes)
        self.loads[load.number] = load
        self.todo.append(HostLoad(load.number, stores, pairs))
        self.loaded += len(names)
        self.hits += (len(names) if most is None else min(most, len(names))) * self.block_size
        return load, blocks

    def end(self, load: Load, seconds: float | None = None) -> None:
        """It has arrived, after so many seconds, or is given up; what comes next waits for it either way."""
        if self.loads.pop(load.number, None) is None:
            return
        if seconds is not None:
            self.copying.take(load.size, seconds)
        load.over = True
        self._busy = set().union(*(other.slots for other in self.loads.values()))
        self.todo.append(HostSettle(load.number))

    def can_keep(self, names: list[bytes]) -> bool:
        """Whether there is room for all of them beside those kept already."""
        return len(self._wanted.keys() | set(names)) <= self.slots

    def keep(self, names: list[bytes]) -> None:
        """For a sequence that returns: what the device evicts of them is held until `unkeep`."""
        self._wanted.update(names)
        for name in names:
            if name in self._held:
                self._kept[name] = self._held.pop(name)

    def unkeep(self, names: list[bytes]) -> None:
        for name in reversed(names):
            self._wanted[name] -= 1
            if self._wanted[name] <= 0:
                del self._wanted[name]
                if name in self._kept:
                    self._held[name] = self._kept.pop(name)

    def drop(self, names: Iterable[bytes]) -> None:
        """Forget and zero them, if they are here."""
        dropped = [self._held.pop(name, None) or self._kept.pop(name, None) for name in names]
        slots = [found[0] for found in dropped if found is not None]
        if slots:
            self._free += slots
            self.todo.append(HostClear(slots))

    def drop_all(self) -> None:
        """Forget and zero everything; swapped sequences are computed again."""
        self.drop([*self._held, *self._kept])

    def free_of(self, slots: Iterable[int]) -> list[int]:
        """Those of them that hold nothing."""
        free = set(self._free)
        return [slot for slot in slots if slot in free]

    def begin_step(self, prompt_tokens: int, tokens: int) -> None:
        """A step is about to be launched, with so many tokens, of which so many are of prompts."""
        measured = prompt_tokens if prompt_tokens >= max(self.block_size, tokens // 2) else 0
        self._begun.append((self._now(), measured))

    def end_step(self) -> None:
        """The oldest step in flight is over."""
        begun, prompt_tokens = self._begun.popleft()
        now = self._now()
        if prompt_tokens and now > max(begun, self._ended):
            self.computing.take(prompt_tokens, now - max(begun, self._ended))
        self._ended = now
