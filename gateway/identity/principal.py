"""Who acts, for what, under which rules: all that a request's way through the gateway needs to know of its caller."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from gateway.records.adapters import AdapterRecord
from gateway.records.control import LegalBasis, RiskClass, Scopes
from gateway.records.model_names import ModelNameRecord

if TYPE_CHECKING:
    from gateway.limits.limiter import Counter
    from policy.decision.compile import CompiledPolicy
    from policy.redact.redactor import Redactor


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """A compiled policy, and the redactor made from its plan; both immutable, made once a version."""

    policy: "CompiledPolicy"
    redactor: "Redactor"


@dataclass(frozen=True, slots=True)
class Principal:
    """The bearer of a valid key. Where `in_force` is None, `policy_error` gives the reason, and every request is
    denied.

    `counters`: the quotas that bind it, of key, project and tenant. `names`: what names of models stand for in its
    project. `adapters`: of its project, by what calls name them, `base:adapter`. `origins`: of web pages whose scripts
    may call for that. `as_of`: the state of the directory that it was made from, by which `Directory.is_current`
    recognises it.
    """

    tenant: str
    project: str
    key_id: str
    purpose: str
    legal_basis: LegalBasis
    data_classes: tuple[str, ...]
    risk_class: RiskClass
    ai_system_id: str | None
    scopes: Scopes
    expires_at: datetime | None
    in_force: PolicyInForce | None
    policy_error: str | None
    counters: "tuple[Counter, ...]" = ()
    names: Mapping[str, ModelNameRecord] = field(default_factory=dict, repr=False)
    adapters: Mapping[str, AdapterRecord] = field(default_factory=dict, repr=False)
    origins: tuple[str, ...] = ()
    as_of: object = field(default=None, compare=False, repr=False)

    @property
    def policy(self) -> "CompiledPolicy | None":
        return self.in_force.policy if self.in_force else None

    @property
    def state_secret(self) -> bytes | None:
        """32 bytes that seal the state of a conversation, which clients keep, to this tenant and key: derived from the
        tenant's key, so it is the same in every gateway of the installation. None without a policy in force."""
        key = self.in_force.redactor.hash_key if self.in_force else None
        return None if key is None else hmac.digest(key, b"sealed state\0" + self.key_id.encode(), "sha256")

    @property
    def redactor(self) -> "Redactor | None":
        return self.in_force.redactor if self.in_force else None
