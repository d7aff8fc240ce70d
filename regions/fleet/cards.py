"""How many cards of which kind a replica has, as deployments spell it: ``cpu``, ``h100``, ``4xh100``."""

import re
from dataclasses import dataclass

CPU = "cpu"
MOST_CARDS = 8
"""Most cards of one replica: those of a host."""
_SPELLED = re.compile(r"(?:([0-9]{1,9})x)?(\S+)")


@dataclass(frozen=True, slots=True)
class Cards:
    """name: of the kind, or ``cpu``. count: 0 of ``cpu``."""

    name: str
    count: int = 1

    @classmethod
    def parse(cls, gpu: str) -> "Cards":
        """Raises ValueError for a number outside 1 to `MOST_CARDS`, or of ``cpu``, or for what is no name."""
        found = _SPELLED.fullmatch(gpu)
        if found is None:
            raise ValueError(f"{gpu!r} names no card; write cpu, h100, or 4xh100 for four of them")
        number, name = found.groups()
        if name == CPU:
            if number is not None:
                raise ValueError(f"{gpu!r} counts processors; write {CPU}")
            return cls(CPU, 0)
        count = 1 if number is None else int(number)
        if not 1 <= count <= MOST_CARDS:
            raise ValueError(f"a replica has 1 to {MOST_CARDS} cards, not {count}; lower --gpus")
        return cls(name, count)

    def __str__(self) -> str:
        return self.name if self.count <= 1 else f"{self.count}x{self.name}"
