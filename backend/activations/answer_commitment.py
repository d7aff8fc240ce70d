"""The commitment of one answer to the activations that its tokens were drawn from (after TOPLOC, Ong et al. 2025).

For each CHUNK of tokens, a polynomial is fitted to the largest values of the states after the prompt and after each
token but the last. Its coefficients are stored: 266 bytes for 32 tokens. A verifier with the weights computes the
states again from the tokens in one pass and compares. Digests of the tokens show whether the tokens are the same, which
distinguishes different tokens from different weights.

    version 1 byte | tokens 4 | width 2 | digest of the prompt 8 | per chunk: digest 8, modulus 2, coefficients 2 each
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from backend.activations.field import PRIME, evaluated, injective_modulus, interpolated
from backend.activations.largest_activations import CHUNK, MOST, WIDEST, Largest, Words, largest, row_of

SCHEME = "toploc-bf16/1"
VERSION = 1
DIGEST_BYTES = 8
HEAD = struct.Struct(">BIH8s")
CHUNK_HEAD = struct.Struct(">8sH")
OCTAVE = 128
"""Steps of a bfloat16 mantissa, and the distance of values that are further apart or differ in sign."""


class Malformed(ValueError):
    """The bytes are no commitment of this version."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """rows: states of this chunk. tokens: digest of the answer's tokens up to the last of these states."""

    rows: int
    tokens: bytes
    modulus: int
    coefficients: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Commitment:
    """tokens: of the answer. width: of a state. prompt: digest of the prompt's tokens."""

    tokens: int
    width: int
    prompt: bytes
    chunks: tuple[Chunk, ...]

    def to_bytes(self) -> bytes:
        parts = [HEAD.pack(VERSION, self.tokens, self.width % WIDEST, self.prompt)]
        for chunk in self.chunks:
            parts += CHUNK_HEAD.pack(chunk.tokens, chunk.modulus), chunk.coefficients.astype(">u2").tobytes()
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Commitment":
        """Raises Malformed."""
        try:
            version, tokens, width, prompt = HEAD.unpack_from(raw)
        except struct.error:
            raise Malformed("the commitment is cut; read it again from its record") from None
        if version != VERSION or not tokens:
            raise Malformed(f"the commitment has version {version}; use a release that knows this version")
        width, at, chunks = width or WIDEST, HEAD.size, []
        for start in range(0, tokens, CHUNK):
            rows = min(CHUNK, tokens - start)
            end = at + CHUNK_HEAD.size + 2 * min(MOST, rows * width)
            if end > len(raw):
                raise Malformed("the commitment is cut; read it again from its record")
            digest, modulus = CHUNK_HEAD.unpack_from(raw, at)
            coefficients = np.frombuffer(raw[at + CHUNK_HEAD.size : end], dtype=">u2").astype(np.int64)
            if not 0 < modulus <= PRIME or coefficients.max() >= PRIME:
                raise Malformed("the commitment holds no polynomial; read it again from its record")
            chunks.append(Chunk(rows, digest, modulus, coefficients))
            at = end
        if at != len(raw):
            raise Malformed("the commitment is longer than its tokens; read it again from its record")
        return cls(tokens, width, prompt, tuple(chunks))


@dataclass(frozen=True, slots=True)
class Distance:
    """How far the states of one chunk, computed again, are from those that were committed to.

    values: that were compared. exponents: of these have the same sign and exponent. mean, median: of the differences of
    their mantissas, in steps of bfloat16; OCTAVE where no exponent is the same. steps: mean difference of all values,
    where one that is an octave or more away counts as OCTAVE.
    """

    values: int
    exponents: int
    mean: float
    median: float
    steps: float


def digest_of(tokens: Sequence[int]) -> bytes:
    return hashed(tokens).digest()


def hashed(tokens: Sequence[int]) -> blake2b:
    return blake2b(np.asarray(tokens, dtype="<u4").tobytes(), digest_size=DIGEST_BYTES, person=b"activations")


def digest_after(before: blake2b, tokens: Sequence[int]) -> bytes:
    """`digest_of` what was hashed before and these tokens. `before` stays as it is."""
    after = before.copy()
    after.update(np.asarray(tokens, dtype="<u4").tobytes())
    return after.digest()


class Committer:
    """Collects the rows of one answer, token by token, and makes its commitment at the end."""

    def __init__(self, prompt: Sequence[int], width: int) -> None:
        self._prompt, self._width = digest_of(prompt), width
        self._tokens: list[int] = []
        self._rows: list[Words] = []  # of the chunk that is not full
        self._full: list[tuple[int, bytes, Largest]] = []  # rows, digest of tokens, values

    def add(self, token: int, packed: bytes) -> None:
        """packed: the row that the token was drawn from."""
        self._rows.append(row_of(packed))
        if len(self._rows) == CHUNK:
            self._close()
        self._tokens.append(token)

    def _close(self) -> None:
        if self._rows:
            self._full.append((len(self._rows), digest_of(self._tokens), largest(self._rows, self._width)))
            self._rows = []

    def finish(self) -> Commitment:
        """Commitment of all tokens so far, at least one. Takes some tenths of a millisecond for each chunk."""
        if self._rows:  # `_close` is of the tokens behind which there is a row
            last = self._tokens.pop()
            self._close()
            self._tokens.append(last)
        chunks: list[Chunk] = []
        for _, some in groupby(self._full, key=lambda one: len(one[2].places)):
            chunks += _committed(list(some))
        return Commitment(len(self._tokens), self._width, self._prompt, tuple(chunks))


def _committed(some: list[tuple[int, bytes, Largest]]) -> list[Chunk]:
    """Commitments of chunks with equally many values."""
    moduli = [injective_modulus(values.places) for _, _, values in some]
    places = np.stack([values.places % modulus for (_, _, values), modulus in zip(some, moduli, strict=True)])
    found = interpolated(places, np.stack([values.values for _, _, values in some]))
    return [
        Chunk(rows, digest, modulus, coefficients)
        for (rows, digest, _), modulus, coefficients in zip(some, moduli, found, strict=True)
    ]


def distance(chunk: Chunk, rows: Sequence[Words], width: int) -> Distance:
    """Compare the rows that were computed again, as many as the chunk has, with what it commits to."""
    own = largest(rows, width)
    said = evaluated(chunk.coefficients, own.places % chunk.modulus)
    same = said >> 7 == own.values >> 7  # sign and exponent
    mantissas = np.abs((said & 0x7F) - (own.values & 0x7F))[same]
    apart = np.minimum(np.abs(_ordered(said) - _ordered(own.values)), OCTAVE)
    return Distance(
        values=len(own.values),
        exponents=int(same.sum()),
        mean=float(mantissas.mean()) if len(mantissas) else OCTAVE,
        median=float(np.median(mantissas)) if len(mantissas) else OCTAVE,
        steps=float(apart.mean()),
    )


def _ordered(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """bfloat16 as integers in the order of the numbers."""
    return np.where(bits & 0x8000, -(bits & 0x7FFF), bits & 0x7FFF)
