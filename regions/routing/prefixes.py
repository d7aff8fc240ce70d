"""Which backend has which beginning of a prompt in its cache: a mirror of the engines' prefix caches, kept in memory.

Built as the engine builds its own (`backend.engine.core.block_manager`): a prompt is cut into blocks, each named by a
hash chained over all before it, and each backend keeps so many, the least recently used going first. Blocks are of
text, not of tokens, since tokenising would cost a request more than routing may (docs/adr/0012); so this is a guess at
what a cache holds, worth a choice among backends that may all be used, and nothing else. Hashes are Python's, keyed by
a secret of the process: they mean nothing outside of it.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise

BLOCK_BYTES = 256  # about 64 tokens of text: four blocks of the engine
MAX_BLOCKS = 64
BLOCKS_A_BACKEND = 8192


def block_hashes(prompt: bytes, salt: bytes = b"") -> list[int]:
    """One a whole block of the prompt's first 16 KiB; `salt` is whose cache it is (the project's)."""
    parent, hashes = hash(salt), []
    for start in range(0, min(len(prompt) // BLOCK_BYTES, MAX_BLOCKS) * BLOCK_BYTES, BLOCK_BYTES):
        parent = hash((parent, prompt[start : start + BLOCK_BYTES]))
        hashes.append(parent)
    return hashes


class PrefixIndex:
    """Not for threads. A backend that leaves and comes back is as empty as its cache: `forget` it."""

    def __init__(self, blocks_a_backend: int = BLOCKS_A_BACKEND) -> None:
        self._capacity = blocks_a_backend
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._holders: dict[int, int] = {}  # hash -> a bit for each backend that holds the block
        self._held: dict[str, OrderedDict[int, None]] = {}
        self._next: dict[int, int] = {}  # what followed a block first
        self._parting: set[int] = set()  # blocks that different ones have followed
        self.contents: dict[str, int] = {}
        """How many blocks each backend computed lately, to be read only. Not how many it holds: caches that are full
        all hold as much, however unlike what is asked of them. All are halved when one has computed a cacheful."""

    def remember(self, backend_id: str, hashes: Sequence[int]) -> None:
        """`backend_id` has just computed this prompt."""
        bit = 1 << self._number(backend_id)
        held, holders, fresh = self._held[backend_id], self._holders, 0
        for name in reversed(hashes):  # a prompt's tail is forgotten before its head
            if name in held:
                held.move_to_end(name)
            else:
                held[name] = None
                fresh += 1
                holders[name] = holders.get(name, 0) | bit
        for name, following in pairwise(hashes):
            if self._next.setdefault(name, following) != following:
                self._parting.add(name)
        while len(held) > self._capacity:
            self._drop(held.popitem(last=False)[0], bit)
        self.contents[backend_id] = self.contents.get(backend_id, 0) + fresh
        if self.contents[backend_id] > self._capacity:
            for backend in self.contents:
                self.contents[backend] //= 2

    def forget(self, backend_id: str) -> None:
        number = self._numbers.pop(backend_id, None)
        if number is not None:
            for name in self._held.pop(backend_id):
                self._drop(name, 1 << number)
            self._free.append(number)
            del self.contents[backend_id]

    def settled(self, hashes: Sequence[int]) -> bool:
        """Whether a prompt continues where another one ended, as a conversation does with each turn. One that only
        shares a beginning with others, such as a system prompt, parts from them there, and may as well be computed
        elsewhere.
        """
        deepest = None
        for name in hashes:
            if name not in self._holders:
                break
            deepest = name
        return deepest is not None and deepest not in self._parting

    def longest(self, hashes: Sequence[int]) -> Iterator[set[str]]:
        """Backends that hold the beginning of a prompt: first those that hold most of it, then those with less."""
        owners = -1
        levels: list[int] = []
        for name in hashes:
            owners &= self._holders.get(name, 0)
            if not owners:
                break
            if not levels or levels[-1] != owners:
                levels.append(owners)
        for owners in reversed(levels):
            yield {backend for backend, number in self._numbers.items() if owners >> number & 1}

    def blocks(self, backend_id: str) -> int:
        """How many blocks it is thought to hold."""
        return len(self._held.get(backend_id, ()))

    def _number(self, backend_id: str) -> int:
        number = self._numbers.get(backend_id)
        if number is None:
            number = self._numbers[backend_id] = self._free.pop() if self._free else len(self._numbers)
            self._held[backend_id] = OrderedDict()
        return number

    def _drop(self, name: int, bit: int) -> None:
        left = self._holders[name] & ~bit
        if left:
            self._holders[name] = left
        else:
            del self._holders[name]
            self._next.pop(name, None)
            self._parting.discard(name)
