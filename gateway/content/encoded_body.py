"""Compressed request bodies (RFC 9110 §8.4.1, RFC 7694), unpacked within bounds.

A kilobyte can become a megabyte. So what a body may unpack to is bounded, by the bytes that any body may have and by a
multiple of what was sent, and it is unpacked in slices: what exceeds a bound is never in memory.
"""

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from gateway.errors import InvalidRequest, RequestTooLarge, UnsupportedEncoding
from gateway.openai.asgi_client import Client

CODINGS: Final[Mapping[str, int]] = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""Codings that are read, each by its window for zlib."""
ACCEPTED: Final = "gzip, deflate"
RAW: Final = -15
"""Of a ``deflate`` body without zlib's frame, as some clients send it (RFC 9110 §8.4.1.2)."""
SLICE: Final = 256 << 10
MAX_RATIO: Final = 128
"""Conversations in JSON shrink to a fifth; what shrinks to a hundredth is made for that."""
ANY_RATIO_BYTES: Final = 1 << 20
"""What may be unpacked whatever the ratio: a short repetitive text is no attack."""


def coding_of(headers: Mapping[str, str]) -> str | None:
    """How the body is compressed; None where it is not. Raises UnsupportedEncoding before a byte of it is read."""
    coding = headers["content-encoding"].strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in CODINGS:
        raise UnsupportedEncoding(
            f"The body is in a coding that is not read here; send it as it is, or as {ACCEPTED}", accepts=ACCEPTED
        )
    return coding


async def read_body(client: Client, max_bytes: int, timeout_s: float) -> bytes:
    """The body of a request, unpacked. Raises as `Client.body`, `coding_of` and `unpacked`."""
    coding = coding_of(client.headers) if "content-encoding" in client.headers else None
    raw = await client.body(max_bytes, timeout_s)
    return raw if coding is None else await unpacked(coding, raw, max_bytes)


async def unpacked(coding: str, raw: bytes, max_bytes: int) -> bytes:
    """`raw` without its coding, with a turn for other work after each slice.

    Raises RequestTooLarge beyond `max_bytes` or the ratio, InvalidRequest for what is not of that coding, not whole, or
    has something behind its end.
    """
    pieces: list[bytes] = []
    try:
        for piece in _slices(coding, raw, max_bytes):
            pieces.append(piece)
            await asyncio.sleep(0)
    except zlib.error:
        raise InvalidRequest(
            f"The body is not {coding}; send what Content-Encoding says", code="invalid_encoding"
        ) from None
    return b"".join(pieces)


def _slices(coding: str, raw: bytes, max_bytes: int) -> Iterator[bytes]:
    most = min(max_bytes, max(ANY_RATIO_BYTES, MAX_RATIO * len(raw)))
    window = CODINGS[coding]
    if coding == "deflate" and not _has_zlib_header(raw):
        window = RAW
    packed, size, rest = zlib.decompressobj(window), 0, raw
    while not packed.eof:
        piece = packed.decompress(rest, SLICE)
        rest = packed.unconsumed_tail
        size += len(piece)
        if size > most:
            raise RequestTooLarge(f"The body unpacks to more than {most} bytes, which is its limit; send less at once")
        if piece:
            yield piece
        elif not packed.eof and not rest:
            raise InvalidRequest(f"The body ends within its {coding}; send all of it", code="invalid_encoding")
    if packed.unused_data:
        raise InvalidRequest(
            f"The body goes on behind the end of its {coding}; send one stream", code="invalid_encoding"
        )


def _has_zlib_header(raw: bytes) -> bool:
    """RFC 1950 §2.2."""
    return len(raw) >= 2 and raw[0] & 0x0F == 8 and (raw[0] << 8 | raw[1]) % 31 == 0
