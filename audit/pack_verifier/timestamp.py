"""Timestamps: what a token is over, and its time (RFC 3161). Not the authority's signature."""

from __future__ import annotations

import hashlib

from audit.pack_verifier.fault import Broken

HASHES = {bytes.fromhex("608648016503040201"): "sha256", bytes.fromhex("608648016503040203"): "sha512"}
TST_INFO = bytes.fromhex("2a864886f70d0109100104")  # id-ct-TSTInfo


def der(data: bytes, at: int = 0) -> tuple[int, bytes, int]:
    """Tag, content and end of the DER value at `at`."""
    if at + 2 > len(data):
        raise Broken("the timestamp is cut short")
    tag, size, at = data[at], data[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        if not 1 <= count <= 4:
            raise Broken("the timestamp is not DER")
        size, at = int.from_bytes(data[at : at + count], "big"), at + count
    if at + size > len(data):
        raise Broken("the timestamp is cut short")
    return tag, data[at : at + size], at + size


def values(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(data):
        tag, content, at = der(data, at)
        found.append((tag, content))
    return found


def stamped(token: bytes, message: bytes) -> str:
    """The time in a TimeStampResp or token over `message`."""
    info = find_info(token, 0)
    if info is None:
        raise Broken("the timestamp has no TSTInfo")
    try:
        parts = values(values(info)[0][1])
        imprint = values(parts[2][1])
        name = HASHES.get(values(imprint[0][1])[0][1])
        when = next(content for tag, content in parts if tag == 0x18).decode()
        digest = imprint[1][1]
    except (IndexError, StopIteration, UnicodeDecodeError):
        raise Broken("the timestamp is not of RFC 3161") from None
    if name is None or hashlib.new(name, message).digest() != digest:
        raise Broken("the timestamp is over something else")
    return when[:4] + "-" + when[4:6] + "-" + when[6:8] + "T" + when[8:10] + ":" + when[10:12] + ":" + when[12:]


def find_info(data: bytes, depth: int) -> bytes | None:
    """The content of the EncapsulatedContentInfo of type id-ct-TSTInfo, at any place."""
    if depth > 12:
        return None
    parts = values(data)
    for at, (tag, content) in enumerate(parts):
        if tag == 6 and content == TST_INFO and at + 1 < len(parts) and parts[at + 1][0] == 0xA0:
            return der(parts[at + 1][1])[1]
        if tag & 0x20 and (found := find_info(content, depth + 1)) is not None:
            return found
    return None
