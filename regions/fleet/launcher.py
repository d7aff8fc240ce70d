"""What it means to start and stop a backend, wherever it runs. `regions.launchers.local` runs processes on this
machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from regions.fleet.fleet import Backend, Role
from regions.identity.identity import BackendIdentity

MTP = "mtp"  # the model's own layer guesses, as `fleet.draft_models` and `backend serve` name it

Progress = Callable[[str], None]
"""Takes one sentence on what is going on, for people who wait."""


def silent(_sentence: str) -> None:
    """A Progress that discards what it gets."""


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What to start: whose, which model, with what. `threads` and `gpus` (device numbers) bound what it may use.
    `draft`: a smaller model or a head beside `model`, in the same folder, which guesses for it in the way of
    `speculation`, as `backend serve` names it; "mtp" needs none. `role`: as in `Backend`."""

    identity: BackendIdentity
    model: Path
    served_name: str
    threads: int | None = None
    gpus: tuple[int, ...] = ()
    card: str | None = None  # the kind of GPU it is to have, where the launcher chooses them
    cards: int = 1  # how many of them, among which the model is divided
    options: tuple[str, ...] = ()  # more of `backend serve`
    draft: Path | None = None
    speculation: str = "model"
    role: Role = "mixed"

    def guessing(self, draft: str) -> list[str]:
        """Options of `backend serve`. draft: path of `draft` where the backend runs."""
        if self.draft is None:
            return ["--speculation", self.speculation] if self.speculation == MTP else []
        return ["--speculation", self.speculation, "--draft-model", draft]


@dataclass(frozen=True, slots=True)
class RunningBackend:
    """A backend that reported ready. `pid` and `log`: set where it is a process of this machine."""

    backend: Backend
    pid: int | None
    log: Path | None


class Launcher(Protocol):
    """Starts and stops backends. Unless they outlive it, all of them are stopped when it closes."""

    outlives: bool
    """Backends keep running when the launcher ends; the next leader adopts them."""

    async def adopt(self) -> None:
        """Find what earlier ones left, so that it is `running`. Raises RegionsError."""
        ...

    async def start(self, spec: BackendSpec, *, progress: Progress = silent) -> RunningBackend:
        """Returns when it is ready. Raises LaunchError, with nothing left running, if it does not get there."""
        ...

    async def stop(self, backend_id: str) -> None:
        """Returns when nothing of it runs any more. Stopping what does not run does nothing."""
        ...

    @property
    def running(self) -> Mapping[str, RunningBackend]:
        """What runs, by id."""
        ...

    async def close(self) -> None:
        """Stop all, or let go of all that outlives it."""
        ...
