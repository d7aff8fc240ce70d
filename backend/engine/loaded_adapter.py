"""Description of a loaded adapter, for the HTTP process too: this module imports neither torch nor the engine."""

import msgspec


class LoadedAdapter(msgspec.Struct, frozen=True, array_like=True, order=True):
    """project: whose requests alone may use it, and within which its name is unique; "": those of all. path: in the
    folder of adapters. digest: SHA-256 in hexadecimal (`models.adapters.peft.digest_of`). size: bytes of its files."""

    name: str
    path: str
    digest: str
    rank: int
    size: int
    project: str = ""
