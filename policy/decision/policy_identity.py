"""What documents make together is called: an id, a version, and the hash that records of calls carry."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import rfc8785

from policy.document.document import PolicyDocument
from policy.document.inherit import Library, bases_of
from policy.presets import preset_document


@dataclass(frozen=True, slots=True)
class Identity:
    """`canonical`: the RFC 8785 form of the document, or of the list of all of them, from the top level down."""

    policy_id: str
    version: str
    canonical: bytes

    @property
    def hash(self) -> str:
        return sha256(self.canonical).hexdigest()


def identity_of(
    tenant: PolicyDocument,
    project: PolicyDocument | None = None,
    *,
    operator: PolicyDocument | None = None,
    library: Library = preset_document,
) -> Identity:
    """Identity of what these documents make together, without making it. Raises PolicyDocumentError for a wrong
    ``extends``."""
    named = [document for document in (operator, tenant, project) if document is not None]
    extended = [each for one in named for each in (*bases_of(one, library), one)]
    said: list[Any] = [each.model_dump(mode="json", exclude_unset=True, by_alias=True) for each in extended]
    return Identity(
        policy_id="+".join(document.policy for document in named),
        version="+".join(str(document.version) for document in named),
        canonical=rfc8785.dumps(said if len(said) > 1 else said[0]),
    )
