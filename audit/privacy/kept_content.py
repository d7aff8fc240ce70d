"""Content of persons that is kept outside of the value store, sealed under keys in it (`audit.private.content_keys`):
what an access request shows of it. The programs that keep such content add what reads it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class KeptContent(NamedTuple):
    """`kind`: file_line, file_result or response. `id`: of the file, batch or response; `line`: its number there.
    `created` and `expires`: times of RFC 3339."""

    kind: str
    id: str
    line: int | None
    created: str
    expires: str
    value: str


Reader = Callable[[str, str, AESGCM], Iterable[KeptContent]]
"""From a tenant, the id of a person's data key and its cipher, all content under it. Raises AuditError."""

Source = Callable[[Path], Reader]
"""From a data folder."""

content_sources: list[Source] = []


def reader_of(data: Path) -> Reader:
    """Asks all sources."""
    readers = [source(data) for source in content_sources]

    def read(tenant: str, key_id: str, cipher: AESGCM) -> Iterable[KeptContent]:
        for reader in readers:
            yield from reader(tenant, key_id, cipher)

    return read


def none_kept(tenant: str, key_id: str, cipher: AESGCM) -> Iterable[KeptContent]:
    """A Reader where no such content is kept."""
    return ()
