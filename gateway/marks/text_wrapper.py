"""Reader of a manifest embedded in a text: ``C2PATextManifestWrapper`` of C2PA 2.4, A.8.

After U+FEFF, each byte is encoded as a variation selector: 0 to 15 as U+FE00 to U+FE0F, 16 to 255 as U+E0100 to
U+E01EF. The bytes are a magic number, a version, the length (4 bytes, big-endian) and the manifest store.
"""

import re
from typing import Final

MAGIC: Final = b"C2PATXT\0"
VERSION: Final = 1
HEADER: Final = len(MAGIC) + 1 + 4
_RUN: Final = re.compile("\ufeff([\ufe00-\ufe0f\U000e0100-\U000e01ef]+)")


class WrapperError(ValueError):
    """The wrapper is invalid. `code`: status code of C2PA 2.4."""

    def __init__(self, code: str) -> None:
        super().__init__(f"the text has no usable manifest inside: {code}; give its manifest with --manifest")
        self.code = code


def manifest_in(text: str) -> bytes | None:
    """Return the manifest store embedded in a text, or None. Raises WrapperError for an invalid wrapper."""
    found = []
    for run in _RUN.finditer(text):
        raw = bytes(_byte(char) for char in run[1])
        if not raw.startswith(MAGIC):
            continue
        size = int.from_bytes(raw[HEADER - 4 : HEADER], "big")
        if len(raw) < HEADER + size or raw[len(MAGIC)] != VERSION or not size:
            raise WrapperError("manifest.text.corruptedWrapper")
        found.append(raw[HEADER : HEADER + size])
    if len(found) > 1:
        raise WrapperError("manifest.text.multipleWrappers")
    return found[0] if found else None


def _byte(selector: str) -> int:
    point = ord(selector)
    return point - 0xFE00 if point < 0xFE10 else point - 0xE0100 + 16
