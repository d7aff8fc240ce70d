"""The rights of a person over what is kept: access (GDPR 15), rectification (16), restriction (18); and plain reading.

Whatever shows a value records it first. Nothing is corrected in place: a correction is a new record that names the old.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from audit.errors import AuditError, RestrictedError
from audit.events.canonical import canonicalize
from audit.events.commitment import Field
from audit.events.privacy import ContentAccessed, DsarAnswered, DsarRectified, DsarRestricted, LogRead
from audit.events.private_value import Private
from audit.incidents.pack_inputs import Evidence
from audit.log.receipt import Receipt
from audit.privacy.article_15 import article_15, transfers_of
from audit.privacy.kept_content import KeptContent, Reader, none_kept
from audit.private.audit_context import AuditContext
from audit.private.content_keys import of_person
from audit.private.erasure import recipients, routes
from audit.private.value_store import Disclosed, StoredValue, ValueStore


async def answer(
    context: AuditContext,
    tenant: str,
    subject: str,
    *,
    actor: str = "system",
    evidence: Evidence = Evidence(),  # noqa: B008, it is frozen
    content: Reader = none_kept,
) -> dict[str, Any]:
    """All that is kept of a person, with what Article 15(1) lists: the package of an access request, a JSON value.

    `evidence`: the registers with names, purposes and contacts. `content`: reads what is kept outside of the side
    store. Restricted data is part of the package. Raises AuditError if nothing is kept under the subject.
    """
    key_id = await _key(context, tenant, subject)

    def open_all(side: ValueStore) -> list[Disclosed]:
        return [side.disclose(kept) for kept in _of_records(context, tenant, side.kept(tenant, key_id=key_id))]

    def open_content(side: ValueStore) -> list[KeptContent]:
        cipher = of_person(side, tenant, key_id)
        return [] if cipher is None else list(content(tenant, key_id, cipher))

    shown = await context.with_values(open_all)
    kept_content = await context.with_values(open_content)
    seqs = sorted({one.kept.seq for one in shown})
    records = _records(context, tenant, shown)
    told = [one.model_dump(mode="json") for one in recipients(context, tenant, seqs)]
    classes = {one.kept.retention_class for one in shown}
    classes |= {str(one["record"]["retention_class"]) for one in records if "retention_class" in one["record"]}
    package: dict[str, Any] = {
        "v": 1,
        "dsar_id": context.new_id(),
        "tenant": tenant,
        "key_id": key_id,
        "controller": evidence.controller.name or tenant,
        "purposes": sorted(
            {evidence.purpose(str(one["record"]["activity_id"])) for one in records if "activity_id" in one["record"]}
        ),
        "recipients": told,
        "retention": sorted(classes),
        "article_15": article_15(records, told, classes, evidence, transfers_of(routes(context, tenant, seqs))),
        "records": records,
        "content": [one._asdict() for one in kept_content],
    }
    await context.record(
        DsarAnswered(
            tenant=tenant,
            dsar_id=package["dsar_id"],
            actor=actor,
            key_id=key_id,
            records=len(records),
            values=len(shown),
            content=len(kept_content),
            package_sha256=sha256(canonicalize(package)).hexdigest(),
        )
    )
    return package


def _records(context: AuditContext, tenant: str, shown: Iterable[Disclosed]) -> list[dict[str, Any]]:
    """The records of the disclosed values, each with its own."""
    values: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for one in shown:
        values[one.kept.seq][one.kept.field] = {"value": one.value, "salt": one.salt.hex()}
    return [
        {
            "seq": seq,
            "ts": leaf.stamp.ts,
            "record": leaf.event.model_dump(mode="json", exclude_none=True),
            "values": values[seq],
        }
        for seq, leaf in context.leaves(tenant, sorted(values))
    ]


async def rectify(
    context: AuditContext, tenant: str, seq: int, field: Field, value: Any, *, actor: str = "system"
) -> Receipt:
    """Put `value` on record in place of a value of record `seq`, filed under the same person, class and expiry.

    Raises AuditError if nothing is kept for that field.
    """

    def find(side: ValueStore) -> list[Disclosed]:
        values = side.kept(tenant, start=seq, end=seq + 1)
        return [side.disclose(kept) for kept in _of_records(context, tenant, values)]

    found = {one.kept.field: one for one in await context.with_values(find)}
    if field not in found or field == "subject":
        raise AuditError(
            f"record {seq} keeps no {field} that could be corrected; name a field that `domicile audit show` lists"
        )
    kept = found[field].kept
    subject = found["subject"].value if "subject" in found else None
    private = Private({field: value}, subject, kept.retention_class, kept.expires)
    return await context.record(DsarRectified(tenant=tenant, actor=actor, supersedes_seq=seq), private)


async def restrict(
    context: AuditContext, tenant: str, subject: str, *, restricted: bool = True, actor: str = "system"
) -> None:
    """Restrict the data of a person to storage, or allow its use again. Raises AuditError as `answer` does."""
    key_id = await _key(context, tenant, subject)
    kind = "dsar.restricted" if restricted else "dsar.unrestricted"
    event = DsarRestricted.model_validate({"type": kind, "tenant": tenant, "actor": actor, "key_id": key_id})
    if restricted:
        await context.with_values(partial(_set_restricted, key_id=key_id, restricted=True))
        await context.record(event)
    else:
        await context.record(event)
        await context.with_values(partial(_set_restricted, key_id=key_id, restricted=False))


async def read(
    context: AuditContext,
    tenant: str,
    seq: int,
    *,
    actor: str,
    reason: str = "support",
    only: Collection[str] | None = None,
) -> Sequence[Disclosed]:
    """The values of one record, recorded as shown before they are. only: of these fields; None: all.

    Raises RestrictedError, AuditError if none is kept.
    """

    def find(side: ValueStore) -> list[Disclosed]:
        kept = _of_records(context, tenant, side.kept(tenant, start=seq, end=seq + 1))
        if any(side.restricted(one.key_id) for one in kept):
            raise RestrictedError(
                f"the values of record {seq} are restricted, so they may be kept and not used; lift the "
                "restriction with `domicile audit restrict --lift` first"
            )
        return [side.disclose(one) for one in kept if only is None or one.field in only]

    shown = await context.with_values(find)
    if not shown:
        raise AuditError(f"nothing is kept of record {seq}; check the number of the record")
    fields = tuple(one.kept.field for one in shown)
    await context.record(ContentAccessed(tenant=tenant, actor=actor, seq=seq, fields=fields, reason=reason))
    return shown


async def log_read(context: AuditContext, tenant: str, *, actor: str, reason: str) -> int:
    """Record that all records so far are about to be read; returns how many there are."""

    def size() -> int:
        with context.reading() as reader:
            return reader.head(tenant)[0]

    end = await context.in_thread(size)
    await context.record(LogRead(tenant=tenant, actor=actor, first=0, end=end, reason=reason))
    return end


async def _key(context: AuditContext, tenant: str, subject: str) -> str:
    key_id = await context.with_values(lambda side: side.subject_key(tenant, subject))
    if key_id is None:
        raise AuditError("nothing is kept under this subject; check the subject")
    return key_id


def _of_records(context: AuditContext, tenant: str, values: Iterable[StoredValue]) -> list[StoredValue]:
    """Without the values of records that never were (a crash leaves them until retention sweeps them out)."""
    found = list(values)
    events = context.event_ids(tenant, sorted({one.seq for one in found}))
    return [one for one in found if events.get(one.seq) == one.event_id]


def _set_restricted(side: ValueStore, key_id: str, restricted: bool) -> None:
    with side.transaction() as db:
        db.execute("UPDATE data_key SET restricted = ? WHERE id = ?", (int(restricted), key_id))
