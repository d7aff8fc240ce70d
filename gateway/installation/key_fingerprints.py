"""Fingerprints of keys: a file that holds another key than before is noticed, and nothing is learned about the key.

A key of another installation, or one that was made again, has the right size and form. What it does wrong shows late:
hashes that match nothing, certificates that no backend trusts. So the data folder and the control database keep a
fingerprint of each key, and the key is compared with them before it is used.
"""

import hmac
import re
from collections.abc import Collection
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from regions.identity.encrypted_file import is_sealed_content

LENGTH = 32
"""Hex digits of a fingerprint."""

_AUTHORITY = "ca/ca.key"
_SHARED = re.compile(r"secrets/(?:redaction|requests|manifests|pepper(?:\.[0-9]+)?)|ca/ca\.key", re.ASCII)
_OF_THE_FOLDER = re.compile(r"audit/keys/root\.key(?:\.[0-9]+)?", re.ASCII)
"""The signing key is not among them: it is replaced in place, and the databases name its first generation."""


def has_fingerprint(name: str) -> bool:
    """Whether the key at the path `name` of a data folder stays the same as long as it is there."""
    return is_shared(name) or _OF_THE_FOLDER.fullmatch(name) is not None


def is_shared(name: str) -> bool:
    """Whether it is the same on every host of the cell. A version of the root key may be made on two hosts."""
    return _SHARED.fullmatch(name) is not None


def fingerprint_of(name: str, content: bytes) -> str | None:
    """LENGTH hex digits; None for the content of a sealed file, which opens in its own installation only.

    For the authority it is that of its root, which stays when the certificates below it are renewed.
    """
    if is_sealed_content(content):
        return None
    key = _root_of(content) if name == _AUTHORITY else content
    return hmac.digest(key, b"domicile key fingerprint\0" + name.encode(), sha256).hex()[:LENGTH]


def _root_of(bundle: bytes) -> bytes:
    """The public key of the last certificate in `bundle`; all of it if it holds none, which its reader reports."""
    try:
        root = x509.load_pem_x509_certificates(bundle)[-1]
        return root.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    except (ValueError, IndexError):
        return bundle


def describe_changed(paths: Collection[str]) -> str:
    """Which keys are not those of before, and what to do."""
    is_are, key, it = ("is", "the key", "it") if len(paths) == 1 else ("are", "the keys", "them")
    return (
        f"{', '.join(paths)} {is_are} not {key} that this installation has used; move {it} away and put the key set of"
        " this installation back with: domicile init --keys KEY_SET, or, if the key was replaced on purpose, run:"
        " domicile secrets accept"
    )
