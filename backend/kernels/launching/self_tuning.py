"""Self-tuning on a card without measurements: times the launch choices of its dense products at the first start.

The choices that come with the package were measured on the cards named in `backend/kernels/choices.json`. Elsewhere a
start times, for each product of the steps that it captures anyway, the candidates of its kernel, for as long as
`SECONDS`, and keeps the winners in a file of this host. The next start goes on where the time ended, and one that finds
everything there times nothing. Attention and products of experts keep their defaults: the steps of a start have no keys
to read and no routing that means anything.

Not with several ranks, each of which would choose for itself, nor where tokens must not depend on the batch.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from backend.kernels.launching import tuning
from backend.kernels.launching.tuning import Choice, Choices, Lookup

log = logging.getLogger(__name__)

SECONDS = 90.0
KERNELS = frozenset({"skinny_linear", "narrow_linear", "int4_linear", "int8_linear", "fp8_block_linear"})
REPEATS = 20

OnProgress = Callable[[int, int], object]
"""Takes the seconds that have passed, of so many."""
Timer = Callable[[Callable[[], object]], float]
"""Takes a call, and returns how long it takes, in any unit. Raises what the call raises."""


def choices_of_host() -> Path:
    """The file that winners are kept in (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "domicile" / "launch-choices.json"


@dataclass
class SelfTuning:
    """Times candidates until `seconds` have passed.

    Attributes:
        kept: of this host. in_use: those that launches ask, which get the winners too.
        found, left: products that were settled, and those there was no time for, by the launcher's key.
    """

    kept: Choices
    in_use: Choices
    seconds: float
    timer: Timer
    on_progress: OnProgress
    clock: Callable[[], float] = time.monotonic
    found: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._deadline = self.clock() + self.seconds

    def settle(self, lookup: Lookup, launch: Callable[[Choice], object]) -> None:
        key = lookup.key
        if lookup.kernel not in KERNELS or key in self.in_use.known or key in self.left:
            return
        if self.clock() > self._deadline:
            self.left.add(key)
            return

        def taken(choice: Choice) -> float | None:
            if self.clock() > self._deadline and choice != lookup.default:
                return None
            try:
                return self.timer(lambda: launch(choice))
            except (OutOfResources, CompilationError, PTXASError):
                return None

        choices = dict.fromkeys((lookup.default, *lookup.candidates()))
        try:
            self.in_use.known[key] = self.kept.tune(key, choices, taken)
        except ValueError:
            self.left.add(key)  # `launched` finds what fits
            return
        if self.clock() > self._deadline:
            del self.kept.known[key]  # not all of its candidates were timed
            self.left.add(key)
        else:
            self.found.add(key)
        self.on_progress(round(self.seconds - max(0.0, self._deadline - self.clock())), round(self.seconds))

    def keep(self) -> None:
        """Write the winners, so that the next start has them; where that cannot be done, say so and go on."""
        try:
            self.kept.save()
        except OSError as error:
            log.warning(
                "launch choices could not be kept in %s (%s), and the next start times them again; set XDG_CACHE_HOME "
                "to a folder that this user may write",
                self.kept.path,
                error.strerror,
            )


@dataclass(frozen=True)
class CardChoices:
    """Of one card and Triton version. in_use: all. kept: those of this host alone. is_measured: some are shipped."""

    in_use: Choices
    kept: Choices
    is_measured: bool

    @classmethod
    def load(cls, shipped: Path, host: Path, card: str, triton_version: str) -> "CardChoices":
        measured = Choices.load(shipped, card, triton_version)
        kept = Choices.load(host, card, triton_version)
        return cls(Choices(measured.target, known=kept.known | measured.known), kept, bool(measured.known))


@contextmanager
def first_start(
    choices: CardChoices, on_progress: OnProgress, *, enabled: bool = True, timer: Timer | None = None
) -> Iterator[SelfTuning | None]:
    """Time what is launched meanwhile, if that is `enabled` and the card was not measured."""
    if choices.is_measured:
        yield None
        return
    in_use, kept = choices.in_use, choices.kept
    log.info("%s was never measured: launch choices are those of other cards, or this host's own", in_use.target)
    if not enabled:
        yield None
        return
    search = SelfTuning(kept, in_use, SECONDS, timer or microseconds, on_progress)
    with tuning.searching(search):
        yield search
    if search.found:
        search.keep()
        log.info(
            "launch choices of %d products timed and kept in %s; %d are left for the next start",
            len(search.found),
            kept.path,
            len(search.left),
        )
        torch.cuda.empty_cache()


def microseconds(call: Callable[[], object]) -> float:
    """Of one call on this card, with weights that are not in its L2 cache, and some of clearing that cache.

    The time of clearing is the same for every call, so that calls can be compared, not told.
    """
    call()
    torch.cuda.synchronize()
    size = 2 * torch.cuda.get_device_properties().L2_cache_size
    scratch = torch.empty(size, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            scratch.zero_()
            call()
    times = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3 / REPEATS)
    return sorted(times[1:])[1]
