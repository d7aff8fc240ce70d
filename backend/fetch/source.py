"""Files that a source of models offers, with their addresses, before the download."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from backend.errors import FetchError
from backend.fetch.model_manifest import MAX_FILES, is_safe, is_wanted
from backend.fetch.transport import Access
from backend.wire import SIGNATURE_FILE, SIGNER_KEY_FILE

MAX_SIZE = 1 << 44
"""Bytes of one file: 16 TiB."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`size` in bytes. What the place says of the content: `sha256`, `git_sha1` (of the blob, as git counts it) and
    `etag`, which changes with the content."""

    name: str
    size: int
    url: str
    sha256: str | None = None
    git_sha1: str | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """`source`: the name with the commit or digest that it has now."""

    source: str
    files: tuple[RemoteFile, ...]
    access: Access = field(repr=False)

    @property
    def key(self) -> str:
        """The same for the same content at the same place, so that a transfer can continue."""
        said = [(each.name, each.size, each.sha256, each.git_sha1, each.etag) for each in self.files]
        return hashlib.sha256(json.dumps([self.source, said]).encode()).hexdigest()


def chosen(source: str, files: Iterable[RemoteFile], only: str | None = None) -> tuple[RemoteFile, ...]:
    """Select the files that a backend reads: the GGUF file `only`; a folder with config.json, or the one GGUF file.

    Raises FetchError where a name leads out of the folder or two would be one file, and where there is no model.
    """
    wanted = sorted((each for each in files if is_wanted(each.name)), key=lambda each: each.name)
    _refuse_odd(source, wanted)
    names = [each.name for each in wanted]
    if only is None and "config.json" in names and any(name.endswith(".safetensors") for name in names):
        return tuple(each for each in wanted if not each.name.endswith(".gguf"))
    taken = (_gguf(source, names, only), SIGNATURE_FILE, SIGNER_KEY_FILE)
    return tuple(each for each in wanted if each.name in taken)


def _gguf(source: str, names: list[str], only: str | None) -> str:
    """The one GGUF file that is wanted."""
    if only is not None and only not in names:
        raise FetchError(f"{source} does not list that file; name one that it has")
    quantised = [name for name in names if name.endswith(".gguf")]
    if only is None and not quantised:
        raise FetchError(
            f"{source} has neither config.json with safetensors nor a GGUF file; convert it, for pickles are not read"
        )
    if only is None and len(quantised) > 1:
        listed = ", ".join(quantised[:20])
        raise FetchError(f"{source} has several GGUF files ({listed}); name one of them behind the name")
    return only or quantised[0]


def _refuse_odd(source: str, wanted: list[RemoteFile]) -> None:
    if len(wanted) > MAX_FILES:
        raise FetchError(f"{source} lists more than {MAX_FILES} files; name a folder that is one model")
    for each in wanted:
        if not is_safe(each.name) or not 0 <= each.size <= MAX_SIZE:
            raise FetchError(f"{source} lists {each.name[:80]!r}, which is no file of a model; do not use it")
    if len({each.name.lower() for each in wanted}) < len(wanted):
        raise FetchError(f"{source} lists two files of one name; do not use it")
