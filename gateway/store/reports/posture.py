"""Aggregate posture of active policies: which tenants keep content, mask nothing, have no limit."""

from dataclasses import dataclass

from sqlalchemy import inspect, text
from sqlmodel import col, select

from gateway.database.database import Database
from gateway.database.tables.control import PolicyVersionRow, TenantRow
from policy.document.document import PolicyDocument, load_document
from policy.errors import PolicyError

_ADMIN_LIMITS = "limit_setting"  # what administrators set in addition to policies


@dataclass(frozen=True, slots=True)
class Posture:
    """Names of living tenants, in order."""

    keep_content: tuple[str, ...] = ()
    mask_nothing: tuple[str, ...] = ()
    unlimited: tuple[str, ...] = ()
    unredacted: tuple[str, ...] = ()
    """Whose prompts managed services may get as they are."""


def posture(database: Database) -> Posture:
    """Summary of the tenants' own documents; a project's only tightens. One that does not load is denied everything
    anyway."""
    with database.read() as session:
        rows = session.exec(
            select(PolicyVersionRow.tenant, PolicyVersionRow.document)
            .join(TenantRow, col(TenantRow.id) == col(PolicyVersionRow.tenant))
            .where(
                col(PolicyVersionRow.active), col(PolicyVersionRow.project) == "", col(TenantRow.revoked_at).is_(None)
            )
            .order_by(col(PolicyVersionRow.tenant))
        ).all()
        limited: set[str] = set()
        if inspect(session.connection()).has_table(_ADMIN_LIMITS):
            limited.update(session.connection().execute(text(f"SELECT DISTINCT tenant FROM {_ADMIN_LIMITS}")).scalars())  # noqa: S608
    read: dict[str, PolicyDocument | None] = {}  # tenants by the thousand share few documents
    keep, bare, unlimited, unredacted = [], [], [], []
    for tenant, document in rows:
        if document not in read:
            read[document] = _loaded(document)
        parsed = read[document]
        if parsed is None:
            continue
        if parsed.retention.content not in (None, "none"):
            keep.append(tenant)
        if all(action == "tag" for action in parsed.redaction.input.values()):
            bare.append(tenant)
        if tenant not in limited and parsed.limits.model_dump(exclude_none=True) == {}:
            unlimited.append(tenant)
        if parsed.backend.managed == "unredacted":
            unredacted.append(tenant)
    return Posture(tuple(keep), tuple(bare), tuple(unlimited), tuple(unredacted))


def _loaded(document: str) -> PolicyDocument | None:
    try:
        return load_document(document)
    except PolicyError:
        return None
