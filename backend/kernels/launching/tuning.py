"""Launch choices: which block sizes, warps and stages a kernel runs with on this card.

A launcher asks `choice(kernel, shape, default)`, or has its kernel launched by `launched`. Without tuning the answer is
the launcher's own heuristic. `Choices.tune` times candidates when asked to (by a benchmark, an operator, or the first
start on a card that nobody measured), and the winners are kept in a small JSON file, one section for each card and
Triton version, since neither's winners hold for another.
"""

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from triton.runtime.errors import OutOfResources

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """``blocks``: the kernel's own block sizes by name; warps and pipeline stages a program."""

    blocks: tuple[tuple[str, int], ...]
    warps: int
    stages: int

    @classmethod
    def of(cls, warps: int, stages: int, **blocks: int) -> "Choice":
        return cls(tuple(sorted(blocks.items())), warps, stages)

    def arguments(self) -> dict[str, int]:
        """As keyword arguments of a Triton launch."""
        return {**dict(self.blocks), "num_warps": self.warps, "num_stages": self.stages}

    def as_json(self) -> dict[str, int]:
        """As keyword arguments of `of`."""
        return {**dict(self.blocks), "warps": self.warps, "stages": self.stages}


@dataclass(frozen=True)
class Lookup:
    """What a launcher wants a choice for.

    candidates: the choices that are worth timing beside `default`.
    """

    kernel: str
    shape: str
    default: Choice
    candidates: Callable[[], Sequence[Choice]]

    @property
    def key(self) -> str:
        return f"{self.kernel}[{self.shape}]"


class Search(Protocol):
    def settle(self, lookup: Lookup, launch: Callable[[Choice], object]) -> None:
        """Find the choice for `lookup`, if it is not known yet; `launch` may be called any number of times."""


@dataclass
class Choices:
    """Tuned choices of one card and Triton version, by ``kernel[shape]``.

    strict: a launch for which the card has too little is an error, and no other choice is tried in its place.
    """

    target: str
    path: Path | None = None
    known: dict[str, Choice] = field(default_factory=dict)
    strict: bool = False

    @classmethod
    def load(cls, path: Path, card: str, triton_version: str) -> "Choices":
        """Read the section of this card; a file that is missing or broken is an empty one (and is logged if broken)."""
        target = f"{card} / triton {triton_version}"
        return cls(target, path, _read(path).get(target, {}))

    def tune(self, key: str, candidates: Iterable[Choice], taken: Callable[[Choice], float | None]) -> Choice:
        """Keep the fastest candidate under the launcher's key. ``taken`` times one; None if the card cannot run it.

        Raises ValueError if no candidate runs.
        """
        timed = [(time, i, choice) for i, choice in enumerate(candidates) if (time := taken(choice)) is not None]
        if not timed:
            raise ValueError(f"no candidate for {key} runs on {self.target}")
        self.known[key] = min(timed)[2]
        return self.known[key]

    def save(self) -> None:
        """Merge into the file, key by key; a reader sees the old file or the new one, never a torn one."""
        if self.path is None:
            raise ValueError("these choices have no file")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        sections = _read(self.path)
        sections[self.target] = sections.get(self.target, {}) | self.known
        content = {target: {key: c.as_json() for key, c in section.items()} for target, section in sections.items()}
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            json.dump(content, file, indent=1, sort_keys=True)
        os.replace(file.name, self.path)


_active = Choices("defaults")
_search: Search | None = None


def use(choices: Choices) -> None:
    """Let the launchers of this process take their choices from here."""
    global _active
    _active = choices


@contextmanager
def searching(search: Search) -> Iterator[None]:
    """Have `search` settle what is launched meanwhile."""
    global _search
    _search = search
    try:
        yield
    finally:
        _search = None


def choice(kernel: str, shape: str, default: Choice) -> Choice:
    return _active.known.get(f"{kernel}[{shape}]", default)


def launched(lookup: Lookup, launch: Callable[[Choice], T]) -> T:
    """Launch with the choice for this card; where that needs more than the card has, with the first that does not.

    Raises OutOfResources if none fits, or if the choices in use are strict.
    """
    if _search is not None:
        _search.settle(lookup, launch)
    first = _active.known.get(lookup.key, lookup.default)
    try:
        return launch(first)
    except OutOfResources as error:
        if _active.strict:
            raise
        failure = error
    return _smaller(lookup, first, launch, failure)


def _smaller(lookup: Lookup, first: Choice, launch: Callable[[Choice], T], failure: OutOfResources) -> T:
    """Launch with fewer stages, or another candidate, and remember which fitted. Raises the last failure."""
    fewer = (replace(first, stages=stages) for stages in range(first.stages - 1, 0, -1))
    others = (
        replace(each, stages=stages) for each in lookup.candidates() for stages in dict.fromkeys((each.stages, 2, 1))
    )
    for each in (*fewer, *others):
        try:
            done = launch(each)
        except OutOfResources as error:
            failure = error
            continue
        log.info("%s: %s needs more than this card has, launched with %s", lookup.key, first, each)
        _active.known[lookup.key] = each
        return done
    raise failure


def _read(path: Path) -> dict[str, dict[str, Choice]]:
    try:
        content = json.loads(path.read_text())
        return {target: {key: Choice.of(**c) for key, c in section.items()} for target, section in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("ignoring launch choices in %s: %s; remove the file, or tune again", path, error)
        return {}
