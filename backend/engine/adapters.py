"""Adapters loaded by an engine: slot, project and use of each.

No adapter is evicted automatically. A slot becomes free when its adapter is unloaded, which is refused while a running
or waiting sequence uses it. Two adapters of one name with different digests are different adapters.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from backend.engine.adapter_places import Placed
from backend.engine.core.sequence import Sequence
from backend.engine.loaded_adapter import LoadedAdapter
from backend.engine.parallel.followers import Followers
from backend.engine.parallel.leader import numbers, refusals
from backend.engine.parallel.step_messages import PlaceAdapter
from backend.errors import (
    AdapterInUse,
    AdapterRefused,
    AdaptersFull,
    AdapterUnknown,
    InvalidRequest,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NONE = -1  # slot of a sequence without an adapter


class AdapterPlaces(Protocol):
    """Slots on all ranks."""

    @property
    def count(self) -> int: ...

    def place(self, slot: int, path: str, digest: str) -> Placed:
        """Read the adapter at `path` into the slot. digest: required digest; "": any.

        Raises AdapterRefused; the slot is then zeroed.
        """
        ...

    def clear(self, slot: int) -> None:
        """Zero the slot."""
        ...


@dataclass(frozen=True)
class LeadingPlaces:
    """Slots on all ranks, controlled by the leading rank."""

    own: AdapterPlaces
    followers: Followers

    @property
    def count(self) -> int:
        return self.own.count

    def place(self, slot: int, path: str, digest: str) -> Placed:
        found = self.own.place(slot, path, digest)
        self.followers.send(PlaceAdapter(slot, path, found.digest))
        if refused := refusals(self.followers.answers()):
            self.clear(slot)
            raise AdapterRefused(f"not all ranks could load it: {refused}; see that all of them have the same folder")
        return found

    def clear(self, slot: int) -> None:
        self.followers.send(PlaceAdapter(slot))
        self.own.clear(slot)
        numbers(self.followers.answers())


@dataclass
class Adapters:
    """Table of loaded adapters. places: None for an engine without adapters."""

    places: AdapterPlaces | None = None
    _by_name: dict[tuple[str, str], tuple[int, LoadedAdapter]] = field(default_factory=dict)

    @property
    def loaded(self) -> list[LoadedAdapter]:
        return [adapter for _, adapter in self._by_name.values()]

    def load(self, name: str, path: str, project: str = "", digest: str = "") -> LoadedAdapter:
        """Load an adapter and return its description. Idempotent for an adapter that is loaded with that digest.

        Raises:
            InvalidRequest: the name is not valid, or the engine has no slots.
            AdapterInUse: another adapter has the name.
            AdaptersFull: no slot is free.
            AdapterRefused: the adapter cannot be read or used.
        """
        places = self._require()
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                "name: the name of an adapter is 1 to 64 letters, digits, '.', '_' and '-'; choose such a name",
                param="name",
            )
        if (project, name) in self._by_name:
            there = self._by_name[project, name][1]
            if digest == there.digest:
                return there
            raise AdapterInUse(f"an adapter named {name!r} is loaded; unload it first, or choose another name")
        taken = {slot for slot, _ in self._by_name.values()}
        slot = next((slot for slot in range(places.count) if slot not in taken), None)
        if slot is None:
            raise AdaptersFull(f"all {places.count} places have an adapter; unload one, or raise --max-adapters")
        placed = places.place(slot, path, digest)
        loaded = LoadedAdapter(name, path, placed.digest, placed.rank, placed.size, project)
        self._by_name[project, name] = slot, loaded
        return loaded

    def unload(self, name: str, project: str, sequences: Iterable[Sequence]) -> None:
        """Unload an adapter and zero its slot. sequences: all running and waiting sequences.

        Raises AdapterUnknown, or AdapterInUse if a sequence uses it.
        """
        places = self._require()
        slot, _ = self._named(name, project)
        users = sum(sequence.adapter == slot for sequence in sequences)
        if users:
            raise AdapterInUse(f"{users} sequences run with {name!r}; try again when they have ended")
        places.clear(slot)
        del self._by_name[project, name]

    def take(self, name: str, project: bytes, digest: str = "") -> tuple[int, Callable[[bytes], bytes]]:
        """Return the slot and the function that binds the root of a prefix cache to this adapter. name "": no adapter.
        digest: required digest; "": any.

        Raises AdapterUnknown for an adapter that is not loaded, and with the same message for another project's or one
        with another digest.
        """
        if not name:
            return NONE, lambda root: root
        slot, adapter = self._of(name, project.decode())
        if digest not in ("", adapter.digest):
            raise _unknown(name)
        key = bytes.fromhex(adapter.digest)
        return slot, lambda root: blake2b(root, key=key, digest_size=32, person=b"adapter").digest()

    def _require(self) -> AdapterPlaces:
        if self.places is None:
            raise InvalidRequest("this backend takes no adapters; start it with --max-adapters and --adapters")
        return self.places

    def _of(self, name: str, project: str) -> tuple[int, LoadedAdapter]:
        """Resolve a name for a request of that project: the project's own adapter, otherwise a shared one."""
        return self._named(name, project if (project, name) in self._by_name else "")

    def _named(self, name: str, project: str) -> tuple[int, LoadedAdapter]:
        if (project, name) not in self._by_name:
            raise _unknown(name)
        return self._by_name[project, name]


def _unknown(name: str) -> AdapterUnknown:
    return AdapterUnknown(f"no adapter named {name!r} is loaded here; load it, or name another model", param="model")
