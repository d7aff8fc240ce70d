"""Salted commitments: how a leaf speaks of a value that it must not hold.

``c = HMAC-SHA256(salt, "v1|" tenant "|" event_id "|" field "|" JCS(value))`` with 32 random bytes of salt a field, in
the manner of SD-JWT (RFC 9901). Whoever is shown salt and value can check them against the leaf; without the salt a
guess cannot be tried, so a leaf whose salt is destroyed says nothing about a person any more (EDPB Guidelines 02/2025).
"""

import hmac
import os
from typing import Any, Literal, get_args

from audit.errors import CommitmentError
from audit.events.canonical import canonicalize

SALT_SIZE = 32

Field = Literal[
    "subject", "actor", "client_ip", "client_request_id", "input", "input_original", "output", "activations", "findings"
]
"""Kinds of values that are committed to. `input` is what left for the backend, `input_original` what the client sent,
`activations` what each choice of the answer was drawn from, in the form of `backend.activations.answer_commitment`."""

FIELDS: tuple[str, ...] = get_args(Field)


def new_salt() -> bytes:
    return os.urandom(SALT_SIZE)


def commit(salt: bytes, tenant: str, event_id: str, field: str, value: Any) -> str:
    """The commitment, 64 hexadecimal digits. Raises CanonicalError if `value` has no canonical form."""
    return commit_canonical(salt, tenant, event_id, field, canonicalize(value))


def commit_canonical(salt: bytes, tenant: str, event_id: str, field: str, jcs: bytes) -> str:
    """The same of a value whose canonical form is `jcs`."""
    if len(salt) != SALT_SIZE:
        raise CommitmentError(f"a salt is {SALT_SIZE} bytes, not {len(salt)}")
    return hmac.digest(salt, f"v1|{tenant}|{event_id}|{field}|".encode() + jcs, "sha256").hex()


def verify_commitment(commitment: str, salt: bytes, tenant: str, event_id: str, field: str, value: Any) -> None:
    """Raises CommitmentError unless `commitment` was made of these."""
    if not hmac.compare_digest(commitment, commit(salt, tenant, event_id, field, value)):
        raise CommitmentError(f"the value shown for {field} is not the one that the record commits to")
