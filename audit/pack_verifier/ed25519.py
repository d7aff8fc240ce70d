"""Ed25519 signatures in plain integers (RFC 8032 section 5.1.7): without cofactor, of canonical encodings alone."""

from __future__ import annotations

import hashlib
from typing import Any

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)


def add(a: Any, b: Any) -> Any:
    x = (a[1] - a[0]) * (b[1] - b[0]) % P
    y = (a[1] + a[0]) * (b[1] + b[0]) % P
    t, z = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = y - x, z - t, z + t, y + x
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(scalar: int, point: Any) -> Any:
    total = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = add(total, point)
        point = add(point, point)
        scalar >>= 1
    return total


def decompress(data: bytes) -> Any:
    """The point, None if the bytes are the encoding of none."""
    encoded = int.from_bytes(data, "little")
    sign, y = encoded >> 255, encoded & (1 << 255) - 1
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


BASE = decompress((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def ed25519(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) is that of `message` under `public` (32 bytes)."""
    if len(public) != 32 or len(signature) != 64:
        return False
    key, point = decompress(public), decompress(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if key is None or point is None or scalar >= L:
        return False
    digest = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    left, right = multiply(scalar, BASE), add(point, multiply(digest, key))
    same_x = (left[0] * right[2] - right[0] * left[2]) % P == 0
    same_y = (left[1] * right[2] - right[1] * left[2]) % P == 0
    return bool(same_x and same_y)
