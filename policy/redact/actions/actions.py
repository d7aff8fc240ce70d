"""Replacements of findings: tag, hash, mask."""

import hmac
from hashlib import sha256

from policy.errors import RedactionError
from policy.redact.actions.plan import general_label

HASH_DIGITS = 16  # hex; 64 bits of HMAC-SHA256 (RFC 2104)


def mask(label: str) -> str:
    return f"[{general_label(label).upper()}]"


def keyed_hash(label: str, canonical: str, key: bytes) -> str:
    """The same value gives the same text under one key. ``canonical``: see `detectors.Identities`."""
    label = general_label(label)  # a number that two countries' rules fit still joins
    digest = hmac.new(key, f"{label}|{canonical}".encode("utf-8", "surrogatepass"), sha256).hexdigest()
    return f"[{label.upper()}:{digest[:HASH_DIGITS]}]"


def require_key(key: bytes | None) -> bytes:
    if not key:
        raise RedactionError("the plan hashes values, and no key was given")
    return key
