"""How the cards of this machine are linked, from ``nvidia-smi topo -m``, and which of them go together best.

Ranks of a model sum over each other's memory several times a layer: NVLink carries that an order of magnitude faster
than PCIe, and PCIe under one switch faster than across sockets (nvidia-smi's legend).
"""

import logging
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

log = logging.getLogger(__name__)

TIMEOUT_S = 20
NVLINK = 100
"""What one link counts for; more links of a pair count for more."""
PATHS: Mapping[str, int] = {"PIX": 40, "PXB": 30, "PHB": 20, "NODE": 10, "SYS": 0}
"""Paths over PCIe, the shorter for the more."""
_CARD = re.compile(r"GPU(\d+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Topology:
    """links: of a pair of device numbers, the lower first, how well they are linked; a pair that is not there: 0."""

    links: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def link(self, one: int, other: int) -> int:
        return self.links.get((min(one, other), max(one, other)), 0)

    def choose(self, free: Sequence[int], count: int) -> tuple[int, ...] | None:
        """The `count` of the free devices that are linked best among each other: the worst link decides, then their
        sum. Among equals those that are linked least to the rest, so that what is left goes together well, too. None if
        fewer are free."""
        if len(free) < count:
            return None

        def merit(chosen: tuple[int, ...]) -> tuple[int, int, int]:
            within = [self.link(a, b) for a, b in combinations(chosen, 2)]
            rest = [device for device in free if device not in chosen]
            across = sum(self.link(a, b) for a in chosen for b in rest)
            return min(within, default=0), sum(within), -across

        return max(combinations(sorted(free), count), key=merit)  # the first of equals: the lowest numbers


def parse(text: str) -> Topology:
    """The matrix that ``nvidia-smi topo -m`` prints. Columns that are no cards, and words that are not known, count for
    nothing."""
    lines = [_COLOUR.sub("", line).split() for line in text.splitlines()]
    columns = next(([_number(word) for word in line] for line in lines if line and _number(line[0]) == 0), [])
    links: dict[tuple[int, int], int] = {}
    for line in lines:
        row = _number(line[0]) if line else None
        if row is None or line[1:2] == ["GPU1"]:
            continue
        for column, word in zip(columns, line[1:], strict=False):
            if column is not None and column != row:
                links[min(row, column), max(row, column)] = _worth(word)
    return Topology(links)


def _number(word: str) -> int | None:
    found = _CARD.fullmatch(word)
    return int(found[1]) if found else None


def _worth(word: str) -> int:
    """Worth of one path between two cards."""
    if word.startswith("NV") and word[2:].isdecimal():
        return NVLINK * int(word[2:])
    return PATHS.get(word, 0)


def read() -> Topology:
    """Topology of this machine. Where nvidia-smi cannot say, all links are alike, and the log says so."""
    program = shutil.which("nvidia-smi")
    if program is None:
        log.warning(
            "how cards are linked is not known, for there is no nvidia-smi; install it for the best sets of them"
        )
        return Topology()
    try:
        done = subprocess.run(  # noqa: S603  # found on this machine's path, without arguments of others
            [program, "topo", "-m"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.warning(
            "how cards are linked is not known, for nvidia-smi topo failed: %s; run it by hand", type(error).__name__
        )
        return Topology()
    return parse(done.stdout)
