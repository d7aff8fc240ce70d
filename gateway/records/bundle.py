"""Configuration bundle that a cell sends to another: the tenants allowed in that cell, as one signed file.

    {"note": "<signed note>", "content": {...}}

The note (C2SP signed-note, signed with the key of the cell's record) names the sending cell, the receiving cell, the
configuration epoch and the SHA-256 of the content's canonical JSON (RFC 8785). The content has tenants, projects,
hashes of keys, active policies and limits. It has no audit records, usage, people or stored content.
"""

import json
from datetime import datetime
from hashlib import sha256
from typing import Any

import rfc8785
from pydantic import BaseModel, ConfigDict, ValidationError

from audit.errors import NoteError
from audit.tree.note import NoteSigner, VerifierKey, open_note, sign_note
from regions.identity.identity import trust_domain

KIND = "domicile bundle v1"
MAX_BYTES = 256 << 20


class BundleError(ValueError):
    """The file is not a bundle, has another sender or receiver, or does not match its signature."""

    fix = "ask that cell for a new bundle, and check its key"

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(f"{text}; {self.fix}" if self.fix and "; " not in text else text)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BundledTenant(_Part):
    id: str
    display_name: str
    revoked_at: datetime | None


class BundledProject(_Part):
    tenant: str
    id: str
    purpose: str
    legal_basis: str
    data_classes: tuple[str, ...]
    risk_class: str
    ai_system_id: str | None
    revoked_at: datetime | None


class BundledKey(_Part):
    """An API key. `digest`: its keyed hash in hexadecimal. `pepper`: generation of the shared pepper that was used."""

    id: str
    tenant: str
    project: str
    label: str
    digest: str
    pepper: int
    last_four: str
    scopes: dict[str, list[str]]
    expires_at: datetime | None
    replaced_by: str | None
    revoked_at: datetime | None


class BundledPolicy(_Part):
    """The active version of a project's policy, or, with an empty project, of the tenant's."""

    tenant: str
    project: str
    number: int
    document: str
    activated_by: str


class BundledLimits(_Part):
    """Limits. `others` is left out of the bundle unless it is set, so that a cell of an earlier release accepts the
    bundles that it can apply and refuses the rest."""

    tenant: str
    project: str
    key: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    micro_eur_per_day: int | None
    micro_eur_per_month: int | None
    others: dict[str, int] | None = None


class Bundle(_Part):
    """Bundle from cell `home` to cell `peer`. `epoch`: configuration epoch of `home`."""

    home: str
    peer: str
    epoch: int
    tenants: tuple[BundledTenant, ...] = ()
    projects: tuple[BundledProject, ...] = ()
    keys: tuple[BundledKey, ...] = ()
    policies: tuple[BundledPolicy, ...] = ()
    limits: tuple[BundledLimits, ...] = ()

    @property
    def sha256(self) -> str:
        return sha256(_canonical(self)).hexdigest()


def sign_bundle(bundle: Bundle, name: str, signer: NoteSigner) -> bytes:
    """Return the signed bundle as a file. name: name in the signature. Raises SignerError."""
    note = sign_note(_statement(bundle, bundle.sha256), name, signer)
    return json.dumps({"note": note, "content": json.loads(_canonical(bundle))}, ensure_ascii=False).encode()


def open_bundle(data: bytes, key: VerifierKey, *, home: str, peer: str) -> Bundle:
    """Return the bundle in `data` after checking its signature under `key`, its sender `home` and its receiver `peer`.

    Raises BundleError if a check fails.
    """
    if len(data) > MAX_BYTES:
        raise BundleError("the bundle is too large")
    try:
        outer = json.loads(data)
        bundle = Bundle.model_validate_json(json.dumps(outer["content"]))
        statement = open_note(outer["note"], [key])
    except NoteError as error:
        raise BundleError(f"the bundle's signature does not hold: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BundleError(f"not a bundle: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BundleError("not a bundle: it is not a JSON object with a note and a content") from None
    if (bundle.home, bundle.peer) != (home, peer):
        raise BundleError(f"the bundle is of cell {bundle.home!r} for {bundle.peer!r}, not of {home!r} for {peer!r}")
    if key.name != f"{trust_domain(home)}/audit":
        raise BundleError(f"the key is of {key.name}, not of cell {home!r}")
    if statement != _statement(bundle, bundle.sha256):
        raise BundleError("the bundle's content is not what was signed")
    return bundle


def _statement(bundle: Bundle, digest: str) -> str:
    return f"{KIND}\n{bundle.home}\n{bundle.peer}\n{bundle.epoch}\n{digest}\n"


def _canonical(bundle: Bundle) -> bytes:
    content: Any = bundle.model_dump(mode="json")
    for limits in content["limits"]:
        if limits["others"] is None:
            del limits["others"]
    return rfc8785.dumps(content)
