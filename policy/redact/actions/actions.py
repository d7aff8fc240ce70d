"""Replacement texts of findings: mask and keyed hash."""

import hmac
from hashlib import sha256

from policy.errors import RedactionError
from policy.redact.actions.plan import general_label

HASH_DIGITS = 16  # hex digits; 64 bits of HMAC-SHA256 (RFC 2104)


def mask(label: str) -> str:
    """Return the mask for a label: `[EMAIL]`."""
    return f"[{general_label(label).upper()}]"


def keyed_hash(label: str, canonical: str, key: bytes) -> str:
    """Return the hash text of a value: `[EMAIL:…]`. Equal values give equal texts under one key.

    ``canonical``: see `detectors.Identities`.
    """
    label = general_label(label)  # a number that fits the rules of two countries has one hash
    digest = hmac.new(key, f"{label}|{canonical}".encode("utf-8", "surrogatepass"), sha256).hexdigest()
    return f"[{label.upper()}:{digest[:HASH_DIGITS]}]"


def require_key(key: bytes | None) -> bytes:
    """Return `key`. Raises RedactionError if there is none."""
    if not key:
        raise RedactionError("the plan hashes values, and no key was given")
    return key
