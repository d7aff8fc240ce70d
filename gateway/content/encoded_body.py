"""Decompression of request bodies (RFC 9110 §8.4.1, RFC 7694) with bounded size.

A kilobyte can decompress to a megabyte. The decompressed size is therefore limited by the maximum body size and by a
multiple of the compressed size. Decompression runs in slices, so data beyond a limit is never in memory.
"""

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from gateway.errors import InvalidRequest, RequestTooLarge, UnsupportedEncoding
from gateway.openai.asgi_client import Client

CODINGS: Final[Mapping[str, int]] = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""Supported codings, each with its window size for zlib."""
ACCEPTED: Final = "gzip, deflate"
RAW: Final = -15
"""Window size for a ``deflate`` body without zlib header, which some clients send (RFC 9110 §8.4.1.2)."""
SLICE: Final = 256 << 10
MAX_RATIO: Final = 128
"""Maximum compression ratio. JSON conversations shrink to a fifth; only crafted data shrinks to a hundredth."""
ANY_RATIO_BYTES: Final = 1 << 20
"""Decompressed size allowed at any ratio: a short repetitive text is not an attack."""


def coding_of(headers: Mapping[str, str]) -> str | None:
    """Return the content coding of the body; None if it is not compressed.

    Raises UnsupportedEncoding, before the body is read.
    """
    coding = headers["content-encoding"].strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in CODINGS:
        raise UnsupportedEncoding(
            f"The body has an unsupported content coding; send it uncompressed, or as {ACCEPTED}", accepts=ACCEPTED
        )
    return coding


async def read_body(client: Client, max_bytes: int, timeout_s: float) -> bytes:
    """Return the decompressed body of a request. Raises as `Client.body`, `coding_of` and `unpacked`."""
    coding = coding_of(client.headers) if "content-encoding" in client.headers else None
    raw = await client.body(max_bytes, timeout_s)
    return raw if coding is None else await unpacked(coding, raw, max_bytes)


async def unpacked(coding: str, raw: bytes, max_bytes: int) -> bytes:
    """Return `raw` decompressed. Other tasks can run after each slice.

    Raises RequestTooLarge beyond `max_bytes` or the maximum ratio, and InvalidRequest for data that is not in that
    coding, is incomplete, or continues after its end.
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
            raise RequestTooLarge(f"The body decompresses to more than its limit of {most} bytes; send less at once")
        if piece:
            yield piece
        elif not packed.eof and not rest:
            raise InvalidRequest(f"The body's {coding} data is incomplete; send all of it", code="invalid_encoding")
    if packed.unused_data:
        raise InvalidRequest(
            f"The body continues after the end of its {coding} data; send one stream", code="invalid_encoding"
        )


def _has_zlib_header(raw: bytes) -> bool:
    """Return whether `raw` begins with a zlib header (RFC 1950 §2.2)."""
    return len(raw) >= 2 and raw[0] & 0x0F == 8 and (raw[0] << 8 | raw[1]) % 31 == 0
