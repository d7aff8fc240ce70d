"""Description of a loaded adapter, for the HTTP process too: this module imports neither torch nor the engine."""

from collections.abc import Iterable

import msgspec


class LoadedAdapter(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A loaded adapter.

    Attributes:
        project: the only project that may use it; names are unique within a project. "": every project.
        path: relative to the folder of adapters.
        digest: SHA-256 in hexadecimal (`models.adapters.peft.digest_of`).
        size: bytes of its files.
    """

    name: str
    path: str
    digest: str
    rank: int
    size: int
    project: str = ""


def resolved(adapters: Iterable[LoadedAdapter], name: str, project: str) -> LoadedAdapter | None:
    """Whose name that is in a request of this project: its own adapter, otherwise a shared one; None: nobody's."""
    named = [adapter for adapter in adapters if adapter.name == name]
    return next((adapter for of in (project, "") for adapter in named if adapter.project == of), None)
