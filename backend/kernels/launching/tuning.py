"""Launch choices: which block sizes, warps and stages a kernel runs with on this card.

A launcher asks `choice(kernel, shape, default)`. Without tuning the answer is the launcher's own heuristic: a cold
start never tunes. `Choices.tune` times candidates when asked to (by a benchmark or an operator), and the winners are
kept in a small JSON file, one section for each card and Triton version, since neither's winners hold for another.
"""

import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)


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


@dataclass
class Choices:
    """Tuned choices of one card and Triton version, by ``kernel[shape]``."""

    target: str
    path: Path | None = None
    known: dict[str, Choice] = field(default_factory=dict)

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
        """Merge into the file; a reader sees the old file or the new one, never a torn one."""
        if self.path is None:
            raise ValueError("these choices have no file")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        sections = _read(self.path) | {self.target: self.known}
        content = {target: {key: c.as_json() for key, c in section.items()} for target, section in sections.items()}
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            json.dump(content, file, indent=1, sort_keys=True)
        os.replace(file.name, self.path)


_active = Choices("defaults")


def use(choices: Choices) -> None:
    """Let the launchers of this process take their choices from here."""
    global _active
    _active = choices


def choice(kernel: str, shape: str, default: Choice) -> Choice:
    return _active.known.get(f"{kernel}[{shape}]", default)


def _read(path: Path) -> dict[str, dict[str, Choice]]:
    try:
        content = json.loads(path.read_text())
        return {target: {key: Choice.of(**c) for key, c in section.items()} for target, section in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("ignoring launch choices in %s: %s; remove the file, or tune again", path, error)
        return {}
