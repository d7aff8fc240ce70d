"""Fingerprints of answers. They find an answer by its text or a part of it, and do not reveal the text.

Only letters and digits are compared, normalised (NFKC, case folded), so that white space, punctuation and markup may
change. A shingle is SHINGLE consecutive characters (Broder 1997). An answer is divided into at most PRINTS blocks of
equal length, and a keyed 32-bit hash of one shingle in each block is recorded. A passage of two blocks therefore always
contains a recorded shingle, as in winnowing (Schleimer, Wilkerson and Aiken 2003, MOSS), and the number of hashes is
bounded. The position within a block is derived from a keyed hash of the whole answer, so it is unknown without the
salt. A search hashes every shingle of its text. An edit affects only the shingles that contain it.

Without the salt a fingerprint reveals nothing about the text. With the salt, a given text can be tested, but no text
can be recovered.
"""

import unicodedata
from array import array
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import comb

SCHEME = "shingles-1"
SHINGLE = 32
"""Letters and digits in a shingle, about six words."""
PRINTS = 48
"""Most fingerprints of an answer: 192 bytes, for every length."""
LEAST_BLOCK = 16
LEAST = 3
"""Least number of common fingerprints of a match."""
SHORTEST = SHINGLE + LEAST * LEAST_BLOCK - 1
"""Letters and digits in the shortest text that has LEAST fingerprints."""
MAX_CHARACTERS = 1 << 18
"""Letters and digits of an answer after this number are not fingerprinted."""
EXPECTED_FALSE = 1e-6
"""Upper bound on the expected number of matches by hash collision in a search, over all compared records."""

_BITS = 32


def letters_of(text: str) -> str:
    """Return the letters and digits of `text`, normalised for comparison."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def prints_of(salt: bytes, texts: Iterable[str]) -> tuple[bytes, int]:
    """Return the fingerprints of one answer, 4 bytes each in text order, and its number of letters and digits.

    salt: 32 bytes. texts: texts of its choices; a shingle is within one choice. There are no fingerprints if all
    texts together are shorter than SHORTEST.
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
    """Return the hashes of all shingles of a text to search for."""
    letters = letters_of(text)
    hashed = b"".join(_print(salt, letters[at : at + SHINGLE]) for at in range(len(letters) - SHINGLE + 1))
    return frozenset(_numbers(hashed))


def written(prints: bytes) -> str:
    """Return fingerprints in the form used in records: base64url without padding, at most 256 characters."""
    return urlsafe_b64encode(prints).decode().rstrip("=")


def read(said: str) -> Sequence[int]:
    """Return the fingerprints of a record. Raises ValueError if `said` is malformed."""
    return _numbers(urlsafe_b64decode(said + "=" * (-len(said) % 4)))


def needed(prints: int, shingles: int, records: int) -> int:
    """Return the number of common fingerprints that counts as a match, so that at most EXPECTED_FALSE of `records`
    answers with other texts are expected to match by chance. The result exceeds `prints` if no number suffices.

    The probability that r of m fingerprints are among q hashes is at most comb(m, r) * (q / 2**32)**r (union bound).
    The bound does not cover texts with common passages, which have the same shingles.
    """
    enough = (r for r in range(LEAST, prints + 1) if chance(r, prints, shingles) * records <= EXPECTED_FALSE)
    return next(enough, prints + 1)


def chance(common: int, prints: int, shingles: int) -> float:
    """Return an upper bound on the probability that an answer with another text has `common` fingerprints in common."""
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
    """Return hashes as 32-bit integers in native byte order; they are compared and never stored."""
    return array("I", hashed)
