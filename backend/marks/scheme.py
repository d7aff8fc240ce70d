"""Watermark scheme: the keyed random numbers used to sample marked tokens (docs/adr/0122).

A token is sampled by Gumbel-max (Aaronson 2022). The noise is a cryptographic PRF of the key, the CONTEXT previous
tokens and the token. The PRF is ChaCha20 (RFC 8439): the context is the nonce, one word per token, and each candidate
token has one word of the key stream. Averaged over keys, every sample has the model's distribution.

A position is marked if its whole context is within the answer, so that a detector needs only the answer, and if the
same context did not occur before in the answer, because repeated noise would repeat the text. All other positions are
sampled with the request's seed.

Each answer is sampled with one of SHARDS keys derived from the tenant's key, so that several answers to one prompt
differ. The detector tries all of them.

`backend.kernels.sampling` implements the same scheme on a device.
"""

import hmac
from collections.abc import Sequence
from hashlib import sha256

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

SCHEME = "gumbel-chacha20/1"
CONTEXT = 3  # tokens, as many as the nonce has words; ADR 122 has the measurement
SHARDS = 16
HISTORY = 8192  # positions searched for an earlier occurrence of the context
KEY_BYTES = 32
TOKEN_BYTES = 4
BLOCK_WORDS, TILE_BLOCKS = 16, 256
TILE = BLOCK_WORDS * TILE_BLOCKS
"""256 neighbouring tokens have the same word of 256 key stream blocks, so that a GPU reads them in one access. The word
of a token does not depend on the size of the vocabulary."""
BLOCKS_AT_ONCE = 8192
"""Blocks of the key stream, computed together: numpy costs as much for fewer, and more leave the cache."""

Words = NDArray[np.uint32]


class MarkKey(msgspec.Struct, frozen=True):
    """The key of one shard. Its bytes appear in no representation."""

    key: bytes

    def __repr__(self) -> str:
        return "MarkKey(...)"


def shard_key(key: bytes, shard: int) -> MarkKey:
    """Derive a shard's key from a tenant's 32-byte key for a period. shard: taken modulo SHARDS."""
    return MarkKey(hmac.digest(key, b"%s shard %d" % (SCHEME.encode(), shard % SHARDS), sha256))


def nonce(context: Sequence[int]) -> bytes:
    """Return the 12-byte nonce of CONTEXT tokens, oldest first."""
    return b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in context).ljust(12, b"\0")


def word_of(token: int) -> tuple[int, int]:
    """Return the key stream block and the word in it that hold this token's random number."""
    tile, at = divmod(token, TILE)
    return tile * TILE_BLOCKS + at % TILE_BLOCKS, at // TILE_BLOCKS


def random_words(key: MarkKey, context: Sequence[int], vocab: int) -> Words:
    """Return 32 random bits for each token after this context, [vocab]."""
    tiles = -(-vocab // TILE)
    stream = np.frombuffer(_stream(key.key, 0, context, tiles * TILE_BLOCKS), dtype="<u4")
    return stream.reshape(tiles, TILE_BLOCKS, BLOCK_WORDS).transpose(0, 2, 1).reshape(-1)[:vocab]


def random_word(key: MarkKey, context: Sequence[int], token: int) -> int:
    """Return the 32 random bits of one token."""
    block, word = word_of(token)
    return int.from_bytes(_stream(key.key, block, context, 1)[4 * word : 4 * word + 4], "little")


def word_table(keys: Sequence[MarkKey], pairs: Sequence[tuple[Sequence[int], int]]) -> Words:
    """Return `random_word` of each key and each (context, token) pair, [len(keys), len(pairs)], in one computation."""
    count = len(pairs)
    placed = np.array([word_of(token) for _, token in pairs], dtype=np.uint32).reshape(count, 2)
    nonces = np.frombuffer(b"".join(nonce(context) for context, _ in pairs), dtype="<u4").reshape(count, 3)
    table = np.empty((len(keys), count), dtype=np.uint32)
    at_once = max(1, BLOCKS_AT_ONCE // max(1, count))
    for row in range(0, len(keys), at_once):
        some = np.frombuffer(b"".join(key.key for key in keys[row : row + at_once]), dtype="<u4").reshape(-1, 8)
        times = len(some)
        block = _blocks(np.repeat(some, count, 0), np.tile(placed[:, 0], times), np.tile(nonces, (times, 1)))
        word = np.tile(placed[:, 1], times)
        table[row : row + times] = block[word, np.arange(times * count)].reshape(times, count)
    return table


def _blocks(keys: Words, counters: Words, nonces: Words) -> Words:
    """Return n ChaCha20 blocks [16, n] (RFC 8439, section 2.3). keys: [n, 8]. nonces: [n, 3]."""
    start = np.empty((BLOCK_WORDS, len(counters)), dtype=np.uint32)
    start[:4] = np.frombuffer(b"expand 32-byte k", dtype="<u4")[:, None]
    start[4:12], start[12], start[13:] = keys.T, counters, nonces.T
    state = start.copy()
    a, b, c, d = state[:4], state[4:8], state[8:12], state[12:]
    diagonal, spare = tuple(np.empty_like(b) for _ in range(3)), np.empty_like(b)
    for _ in range(10):
        _quarters(a, b, c, d, spare)
        for row, (of, into) in enumerate(zip((b, c, d), diagonal, strict=True), start=1):
            _turned(of, row, into)
        _quarters(a, diagonal[0], diagonal[1], diagonal[2], spare)
        for row, (of, into) in enumerate(zip(diagonal, (b, c, d), strict=True), start=1):
            _turned(of, 4 - row, into)
    state += start
    return state


def _turned(words: Words, by: int, into: Words) -> None:
    into[: 4 - by], into[4 - by :] = words[by:], words[:by]


def _quarters(a: Words, b: Words, c: Words, d: Words, spare: Words) -> None:
    """Compute four quarter rounds in place, one for each row. spare: overwritten; nothing is allocated."""
    for first, second in ((16, 12), (8, 7)):
        a += b
        d ^= a
        _rotate(d, first, spare)
        c += d
        b ^= c
        _rotate(b, second, spare)


def _rotate(words: Words, bits: int, spare: Words) -> None:
    np.left_shift(words, np.uint32(bits), out=spare)
    np.right_shift(words, np.uint32(32 - bits), out=words)
    words |= spare


def _stream(key: bytes, block: int, context: Sequence[int], blocks: int) -> bytes:
    cipher = Cipher(algorithms.ChaCha20(key, block.to_bytes(4, "little") + nonce(context)), mode=None)
    return cipher.encryptor().update(bytes(64 * blocks))


def marked_context(tokens: Sequence[int], start: int, position: int) -> Sequence[int] | None:
    """Return the context used to sample the token at `position`, or None if it is not marked. start: first position of
    the answer."""
    if position - start < CONTEXT:
        return None
    context = tokens[position - CONTEXT : position]
    last, at = context[-1], max(start + CONTEXT, position - HISTORY) - 1
    while True:
        try:
            at = tokens.index(last, at, position - 1)
        except ValueError:
            return context
        if tokens[at + 1 - CONTEXT : at + 1] == context:
            return None
        at += 1
