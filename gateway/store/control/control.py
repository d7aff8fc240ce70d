"""What administrators do to tenants, projects and backends; keys, people and policies come from modules of their own.

Each operation is one transaction: it changes its rows, bumps the configuration epoch (which is how every gateway
learns of it), offers the change to `on_event`, and only then commits.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from sqlmodel import Session

from gateway.database.errors import Duplicate, Invalid, InvalidValue, NotReady
from gateway.database.tables.control import BackendRow, ProjectRow, TenantRow
from gateway.records.control import BackendRecord, LegalBasis, ProjectRecord, RiskClass, TenantRecord
from gateway.store import lookup
from gateway.store.backend_keys import add_key, forget_keys
from gateway.store.change import checked_name, checked_origin, checked_text
from gateway.store.control.adapters import AdapterControl
from gateway.store.control.cells import CellControl
from gateway.store.control.deployments import DeploymentControl
from gateway.store.control.keys import KeyControl
from gateway.store.control.limits import LimitControl
from gateway.store.control.models import ModelNameControl
from gateway.store.control.oversight import OversightControl
from gateway.store.control.policies import PolicyControl
from gateway.store.control.sessions import SessionControl
from gateway.store.lookup import backend_record, project_record, tenant_record
from regions.fleet.fleet import Role
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust

MAX_ORIGINS = 64


class Control(
    KeyControl,
    SessionControl,
    LimitControl,
    PolicyControl,
    OversightControl,
    DeploymentControl,
    CellControl,
    ModelNameControl,
    AdapterControl,
):
    """Operations of one actor on one cell. All raise DatabaseUnavailable, and what `on_event` raises."""

    # Tenants

    def create_tenant(self, tenant: str, *, display_name: str | None = None) -> TenantRecord:
        """Raises Invalid for a name outside the grammar, Duplicate."""
        checked_name(tenant, "tenant")
        if tenant == "operator":
            raise InvalidValue("operator is whose the policy above all tenants is; choose another name")
        with self._change() as change:
            row = TenantRow(
                id=tenant, display_name=checked_text(display_name or tenant, "display name"), **change.stamp
            )
            change.insert(row, f"tenant {tenant!r}")
            record = tenant_record(row)
            change.report("tenant.created", tenant, tenant, None, record)
        return record

    def revoke_tenant(self, tenant: str) -> TenantRecord:
        """All its keys stop working, and its backends leave the fleet. Revoking twice changes nothing."""
        with self._change() as change:
            row = lookup.tenant(change.session, tenant)
            return self._revoke(change, row, tenant_record, "tenant.revoked", tenant, tenant)

    # Projects

    def create_project(
        self,
        tenant: str,
        project: str,
        *,
        purpose: str,
        legal_basis: LegalBasis,
        data_classes: Sequence[str] = (),
        risk_class: RiskClass = "minimal",
        ai_system_id: str | None = None,
    ) -> ProjectRecord:
        """Raises Invalid, Duplicate, NotFound for an unknown or revoked tenant."""
        checked_name(project, "project")
        for name, value, allowed in (
            ("legal basis", legal_basis, get_args(LegalBasis)),
            ("risk class", risk_class, get_args(RiskClass)),
        ):
            if value not in allowed:
                raise InvalidValue(f"{name} {value!r} is not one of {', '.join(allowed)}; give one of them")
        with self._change() as change:
            lookup.living_tenant(change.session, tenant)
            row = ProjectRow(
                tenant=tenant,
                id=project,
                purpose=checked_text(purpose, "purpose"),
                legal_basis=legal_basis,
                data_classes=[checked_text(c, "data class") for c in dict.fromkeys(data_classes)],
                risk_class=risk_class,
                ai_system_id=None if ai_system_id is None else checked_text(ai_system_id, "AI system id"),
                **change.stamp,
            )
            change.insert(row, f"project {project!r} of tenant {tenant!r}")
            record = project_record(row)
            change.report("project.created", tenant, project, None, record, project=project)
        return record

    def set_origins(self, tenant: str, project: str, origins: Sequence[str]) -> ProjectRecord:
        """Replace the origins of web pages whose scripts may call for the project; none: no page may.

        Raises Invalid for what is no origin, NotFound.
        """
        wanted = [checked_origin(origin) for origin in dict.fromkeys(origins)]
        if len(wanted) > MAX_ORIGINS:
            raise InvalidValue(f"a project has at most {MAX_ORIGINS} origins; name fewer")
        with self._change() as change:
            row = lookup.living_project(change.session, tenant, project)
            before = project_record(row)
            row.origins, row.epoch = wanted or None, change.epoch
            record = project_record(row)
            change.report("origins.changed", tenant, project, before, record, project=project)
        return record

    def revoke_project(self, tenant: str, project: str) -> ProjectRecord:
        """All its keys stop working. Revoking twice changes nothing."""
        with self._change() as change:
            row = lookup.project(change.session, tenant, project)
            return self._revoke(change, row, project_record, "project.revoked", tenant, project, project=project)

    # Backends

    def register_backend(
        self,
        backend: BackendIdentity,
        *,
        url: str,
        models: Sequence[str],
        kind: Literal["domicile", "openai", "managed"] = "domicile",
        single_tenant: Literal["attested", "declared"] | None = None,
        trust: Trust | None = None,
        eur_per_million: Decimal | None = None,
        weights_sha256: str | None = None,
        role: Role = "mixed",
        transfer: str | None = None,
    ) -> BackendRecord:
        """Add the replica, or move one of the same identity to a new `url`.

        `eur_per_million`: of tokens, for the choice among backends; None leaves it. `weights_sha256`: what our engine
        has to run, and another server is declared to. `role`: of our engine, where prefill and decode are apart;
        `transfer`: HOST:PORT where one for prompts listens for the others.
        A ``domicile`` backend attests by its certificate that it serves one tenant. An ``openai`` one can only declare
        it (`single_tenant`), and off this host needs a `trust` that names a CA or a certificate. A ``managed`` one is
        trusted by public authorities, and serves others too. Raises Invalid, Duplicate, NotFound.
        """
        if backend.cell != self._cell:
            raise Invalid(f"{backend.uri} is not of cell {self._cell!r}; register it in its own cell")
        if not _is_address(url):  # not quoted: it may hold a password
            raise InvalidValue("url: it is no URL of a server; write https://HOST:PORT/PATH (http: this machine only)")
        if not models:
            raise InvalidValue("a backend must serve a model; name one with --model")
        models = [checked_text(model, "model") for model in models]
        facts = _facts_of_kind(url, kind, single_tenant, trust) | {"weights_sha256": _digest(weights_sha256)}
        facts |= _facts_of_role(url, kind, role, transfer)
        cost = None if eur_per_million is None else _micro_euros(eur_per_million)
        with self._change() as change:
            lookup.living_tenant(change.session, backend.tenant)
            row = change.session.get(BackendRow, backend.backend)
            before = backend_record(row) if row else None
            if row is None:
                told: dict[str, Any] = {"models": models, "cost": cost, **facts, **change.stamp}
                row = BackendRow(
                    id=backend.backend, tenant=backend.tenant, region=backend.region, uri=backend.uri, url=url, **told
                )
                change.session.add(row)
            elif row.uri != backend.uri:
                raise Duplicate(
                    f"backend {backend.backend!r} exists already, as another"
                    "; choose another name, or revoke that one first"
                )
            else:
                _move(change.session, row, url, facts)
                row.models, row.revoked_at, row.epoch = list(models), None, change.epoch
                row.cost = row.cost if cost is None else cost
            change.session.flush()
            record = backend_record(row)
            changed = _models_changed(before, record)
            change.report("backend.registered", backend.tenant, backend.backend, before, record, models=changed)
        return record

    def accept_backend_key(self, tenant: str, backend: str, key_sha256: str) -> BackendRecord:
        """A managed service may show this public key from now on (SHA-256 of its SPKI, in hex). Raises
        InvalidValue, NotReady, NotFound."""
        if not re.fullmatch(r"[0-9a-f]{64}", key_sha256):
            raise InvalidValue("the key is named by its SHA-256, 64 hex digits; take it from the record or the log")
        with self._change() as change:
            row = lookup.backend(change.session, tenant, backend)
            if row.kind != "managed":
                raise NotReady(f"backend {backend!r} is no managed service; only of those are keys accepted")
            add_key(change.session, backend, key_sha256, change.at)
            record = backend_record(row)
            change.report("backend.key_accepted", tenant, backend, record, record, detail={"key": key_sha256})
        return record

    def revoke_backend(self, tenant: str, backend: str) -> BackendRecord:
        """It gets no more requests. Revoking twice changes nothing. Raises NotFound."""
        with self._change() as change:
            row = lookup.backend(change.session, tenant, backend)
            models = dict.fromkeys(row.models, "withdrawn")
            return self._revoke(change, row, backend_record, "backend.revoked", tenant, backend, models=models)


def _move(session: Session, row: BackendRow, url: str, facts: dict[str, Any]) -> None:
    """To `url`; keys that were seen are forgotten where it may be another server."""
    if (row.url, row.trust) != (url, facts["trust"]):
        forget_keys(session, row.id)
    row.weights_sha256, row.role, row.transfer = facts["weights_sha256"], facts["role"], facts["transfer"]
    row.url, row.kind, row.single_tenant, row.trust = url, facts["kind"], facts["single_tenant"], facts["trust"]


def _models_changed(before: BackendRecord | None, after: BackendRecord) -> dict[str, str]:
    """What a backend begins to serve, serves no more, or serves as another server than before."""
    was = set(before.models) if before is not None and before.revoked_at is None else set[str]()
    changed = {model: "deployed" if model not in was else "moved" for model in after.models}
    if before == after:
        changed = {}
    return changed | dict.fromkeys(was.difference(after.models), "withdrawn")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and not (parts.query or parts.fragment or "@" in parts.netloc)
    return plain and bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host == "127.0.0.1"))


def _facts_of_role(url: str, kind: str, role: Role, transfer: str | None) -> dict[str, str | None]:
    if role not in get_args(Role):
        raise InvalidValue(f"role {role!r} is none of {', '.join(get_args(Role))}; give one of them")
    if role != "mixed" and (kind != "domicile" or not url.startswith("https://")):
        raise InvalidValue("prefill and decode apart is of engines of ours reached by https; leave the role out")
    host, _, port = (transfer or "").rpartition(":")
    listens = host.isascii() and host.isprintable() and port.isdecimal() and 0 < int(port) < 1 << 16 and bool(host)
    if (role == "prefill") != (transfer is not None) or (transfer is not None and not listens):
        raise InvalidValue(
            "a backend for prompts, and no other, has a place where it listens for the others; give HOST:PORT of it"
        )
    return {"role": role, "transfer": transfer}


def _digest(weights_sha256: str | None) -> str | None:
    if weights_sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", weights_sha256):
        raise InvalidValue("weights are named by their SHA-256, 64 hex digits; give those")
    return weights_sha256


def _micro_euros(euros: Decimal) -> int:
    micro = euros * 10**6
    if not 0 <= micro <= 10**12 or micro != int(micro):
        raise InvalidValue(
            f"the price {euros} euros a million tokens is not possible; give 0 to a million, with at most six "
            "decimal places"
        )
    return int(micro)


def _facts_of_kind(url: str, kind: str, single_tenant: str | None, trust: Trust | None) -> dict[str, Any]:
    if kind == "domicile":
        if single_tenant == "declared" or trust is not None:
            raise InvalidValue(
                "an engine of ours proves who it is, and that it serves one tenant, by its certificate; leave "
                "trust and single_tenant out"
            )
        attested = "attested" if url.startswith("https://") else "declared"
        return {"kind": kind, "single_tenant": attested, "trust": None}
    if kind == "managed":
        return _facts_of_managed(url, single_tenant, trust)
    if kind != "openai":
        raise InvalidValue(f"kind {kind!r} is none of domicile, openai and managed; give one of them")
    if trust is not None and trust.public:
        raise InvalidValue("public authorities vouch for managed services alone; register it as managed")
    if single_tenant == "attested":
        raise InvalidValue("only our own engine attests that it serves one tenant; this one can declare it")
    if url.startswith("https://") and (trust is None or (trust.ca is None and trust.pin is None)):
        raise InvalidValue(
            "a server that is not our engine is trusted by a private CA or a pinned certificate; name one"
        )
    kept = None if trust is None else trust.model_dump(exclude_none=True)
    return {"kind": kind, "single_tenant": single_tenant, "trust": kept}


def _facts_of_managed(url: str, single_tenant: str | None, trust: Trust | None) -> dict[str, Any]:
    if single_tenant is not None:
        raise InvalidValue("a managed service serves others too; leave single_tenant out")
    if not url.startswith("https://"):
        raise InvalidValue("a managed service is reached by https; write https://HOST/PATH")
    if trust is None or not trust.public or trust.priority:
        raise InvalidValue(
            "a managed service is trusted by public authorities, and has no priorities; say no more of it"
        )
    return {"kind": "managed", "single_tenant": None, "trust": trust.model_dump(exclude_none=True) | {"plain": True}}
