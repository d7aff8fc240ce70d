"""Fields of binary structures that hardware signs, read in order."""

from typing import Literal

from regions.evidence.errors import EvidenceRefused


class FieldReader:
    """Reads fields one after the other.

    `order`: byte order of numbers. `what`: name of the structure in errors. `advice`: how to get a complete one.
    """

    def __init__(self, content: bytes, order: Literal["little", "big"], what: str, advice: str) -> None:
        self._rest, self._order, self._what, self._advice = content, order, what, advice

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises EvidenceRefused past the end."""
        taken, self._rest = self._rest[:size], self._rest[size:]
        if len(taken) != size:
            raise EvidenceRefused(f"{self._what} is cut short; {self._advice}")
        return taken

    def number(self, size: int) -> int:
        """Return the next unsigned integer of `size` bytes. Raises EvidenceRefused past the end."""
        return int.from_bytes(self.take(size), self._order)

    def sized(self, size: int) -> bytes:
        """Return the bytes whose number is in the `size` bytes before them. Raises EvidenceRefused past the end."""
        return self.take(self.number(size))

    def end(self) -> None:
        """Raise EvidenceRefused unless everything was read."""
        if self._rest:
            raise EvidenceRefused(f"{self._what} has bytes after its last field; {self._advice}")
