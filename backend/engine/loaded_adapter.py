"""Description of a loaded adapter, for the HTTP process too: this module imports neither torch nor the engine."""

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
