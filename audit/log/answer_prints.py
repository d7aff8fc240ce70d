"""Fingerprints of answers: enough to find an answer again by its text, or by a part of it, and nothing to read it by.

Of a text the letters and digits count, in one case (NFKC, case folded), so that white space, punctuation and markup may
change. A shingle is SHINGLE of them in a row (Broder 1997). An answer is divided into at most PRINTS blocks of equal
length, and of one shingle in each block a keyed hash of 32 bits is recorded: a stretch of two blocks always holds one,
as in winnowing (Schleimer, Wilkerson and Aiken 2003, MOSS), and the number is bounded. The place within a block comes
from a keyed hash of the whole answer, so that nobody without the salt knows which words count. A search hashes every
shingle of its text. An edit spoils the shingles that it touches and no other.

Without the salt a fingerprint says nothing of the text. With it, a text can be tested, and no text can be read.
"""

import unicodedata
from array import array
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import comb

SCHEME = "shingles-1"
SHINGLE = 32
"""Letters and digits: some six words."""
PRINTS = 48
"""An answer has at most so many: 192 bytes, whatever its length."""
LEAST_BLOCK = 16
LEAST = 3
"""Fewer common fingerprints are no match."""
SHORTEST = SHINGLE + LEAST * LEAST_BLOCK - 1
"""Letters and digits of the shortest text that has LEAST fingerprints."""
MAX_CHARACTERS = 1 << 18
"""Of an answer, those from here on are not fingerprinted."""
EXPECTED_FALSE = 1e-6
"""Records that a search says to match by chance of the hash, expected over all that it compares."""

_BITS = 32


def letters_of(text: str) -> str:
    """Return the letters and digits of `text`, in the form in which they are compared."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def prints_of(salt: bytes, texts: Iterable[str]) -> tuple[bytes, int]:
    """Return the fingerprints of one answer, 4 bytes each in the order of the answer, and its letters and digits.

    salt: 32 bytes. texts: of its choices; no shingle reaches from one into the next. No fingerprints where all
    together are shorter than SHORTEST.
    """
    parts = _bounded(texts)
    counts = [max(0, len(part) - SHINGLE + 1) for part in parts]
    total, letters = sum(counts), sum(map(len, parts))
    blocks = min(PRINTS, total // LEAST_BLOCK)
    if blocks < LEAST:
        return b"", letters
    places = blake2b("\0".join(parts).encode(), digest_size=PRINTS, key=salt, person=b"places").digest()
    found: dict[bytes, None] = {}
    for block in range(blocks):
        start, end = block * total // blocks, (block + 1) * total // blocks
        at, part = start + places[block] * (end - start) // 256, 0
        while at >= counts[part]:
            at, part = at - counts[part], part + 1
        found[_print(salt, parts[part][at : at + SHINGLE])] = None
    return (b"".join(found), letters) if len(found) >= LEAST else (b"", letters)


def shingles_of(salt: bytes, text: str) -> frozenset[int]:
    """Return the hashes of all shingles of a text that is searched for."""
    letters = letters_of(text)
    hashed = b"".join(_print(salt, letters[at : at + SHINGLE]) for at in range(len(letters) - SHINGLE + 1))
    return frozenset(_numbers(hashed))


def written(prints: bytes) -> str:
    """Return fingerprints as a record has them: base64url without padding, at most 256 characters."""
    return urlsafe_b64encode(prints).decode().rstrip("=")


def read(said: str) -> Sequence[int]:
    """Return the fingerprints of a record. Raises ValueError for what is none."""
    return _numbers(urlsafe_b64decode(said + "=" * (-len(said) % 4)))


def needed(prints: int, shingles: int, records: int) -> int:
    """Return how many common fingerprints are a match, so that of `records` answers of other texts at most
    EXPECTED_FALSE are expected to match by chance; more than `prints` where no number would do.

    The chance that r of m fingerprints are among q hashes is at most comb(m, r) * (q / 2**32)**r (union bound). It does
    not cover texts that share words: who quotes the same sentence has the same shingles.
    """
    enough = (r for r in range(LEAST, prints + 1) if chance(r, prints, shingles) * records <= EXPECTED_FALSE)
    return next(enough, prints + 1)


def chance(common: int, prints: int, shingles: int) -> float:
    """Return the bound on the chance that an answer of another text has `common` of its fingerprints in common."""
    share: float = shingles / 2**_BITS
    return min(1.0, comb(prints, common) * float(share**common))


def _bounded(texts: Iterable[str]) -> list[str]:
    parts, left = [], MAX_CHARACTERS
    for text in texts:
        parts.append(letters_of(text[:left]))
        left -= min(left, len(text))
    return parts


def _print(salt: bytes, shingle: str) -> bytes:
    return blake2b(shingle.encode(), digest_size=_BITS // 8, key=salt, person=b"shingle").digest()


def _numbers(hashed: bytes) -> Sequence[int]:
    """As 32-bit integers, in this machine's order of bytes: they are compared and never kept."""
    return array("I", hashed)
