"""Adapter slots of one rank: reads an adapter from the folder of adapters into a slot."""

from dataclasses import dataclass
from pathlib import Path

from backend.errors import AdapterRefused
from backend.models.adapters.bank import AdapterBank
from backend.models.adapters.peft import read_adapter
from backend.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Placed:
    digest: str
    rank: int
    size: int


@dataclass(frozen=True)
class OwnPlaces:
    """Slots of this rank. model: this rank's share. root: the folder of adapters."""

    bank: AdapterBank
    model: ModelConfig
    root: Path

    @property
    def count(self) -> int:
        return self.bank.slots

    def place(self, slot: int, path: str, digest: str) -> Placed:
        folder = (self.root / path).resolve()
        if not path or not folder.is_relative_to(self.root.resolve()):
            raise AdapterRefused(f"path {path!r} leads out of the folder of adapters; name one inside it")
        adapter = read_adapter(folder, self.model, self.bank.rank, self.model.all_layers or self.model.num_layers)
        if digest and adapter.digest != digest:
            raise AdapterRefused(
                f"the adapter in {path!r} has the digest {adapter.digest}, not {digest}; put the one there that was "
                "meant, or name its digest"
            )
        self.bank.fill(slot, adapter)
        return Placed(adapter.digest, adapter.rank, adapter.size)

    def clear(self, slot: int) -> None:
        self.bank.clear(slot)
