"""Stops and resumptions of an AI system or one project by a person with oversight."""

import re

from sqlmodel import select

from gateway.database.errors import InvalidValue, NotFound
from gateway.database.tables.control import ProjectRow
from gateway.database.tables.oversight import StopRow
from gateway.store import lookup
from gateway.store.change import Administration, Change
from gateway.store.oversight import Place, StopRecord, stop_record

_CODE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


class OversightControl(Administration):
    """No call of what is stopped is answered by any gateway from a second later on, running ones included."""

    def stop(
        self, tenant: str, *, project: str | None = None, ai_system_id: str | None = None, reason: str
    ) -> StopRecord:
        """Every project that is part of the AI system, or the one `project`. Stopping twice changes nothing.

        `reason` is a code, since it is recorded. Raises Invalid, NotFound: also for a system that no project of the
        tenant is part of, so that no one believes that they stopped one.
        """
        if not _CODE.fullmatch(reason):
            raise InvalidValue(f"the reason {reason!r} is not a code; give one such as 'wrong_answers'")
        with self._change() as change:
            place, system = _place(change, tenant, project, ai_system_id)
            row = change.session.get(StopRow, place)
            before = stop_record(row) if row else None
            if before is not None and before.resumed_at is None:
                return before
            if row is None:
                row = StopRow(
                    tenant=tenant,
                    project=place[1],
                    ai_system_id=place[2],
                    reason=reason,
                    stopped_at=change.at,
                    stopped_by=change.actor,
                    **change.stamp,
                )
                change.session.add(row)
            row.reason, row.stopped_at, row.stopped_by = reason, change.at, change.actor
            row.resumed_at, row.resumed_by, row.epoch = None, None, change.epoch
            return _told(change, "oversight.stopped", before, row, system, reason)

    def resume(
        self, tenant: str, *, project: str | None = None, ai_system_id: str | None = None, reason: str
    ) -> StopRecord:
        """Resuming twice changes nothing. Raises Invalid, NotFound: also for what was never stopped."""
        if not _CODE.fullmatch(reason):
            raise InvalidValue(f"the reason {reason!r} is not a code; give one such as 'corrected'")
        with self._change() as change:
            place, system = _place(change, tenant, project, ai_system_id)
            row = change.session.get(StopRow, place)
            if row is None:
                raise NotFound(f"{project or ai_system_id!r} of tenant {tenant!r} was never stopped; check the name")
            before = stop_record(row)
            if row.resumed_at is not None:
                return before
            row.resumed_at, row.resumed_by, row.epoch = change.at, change.actor, change.epoch
            return _told(change, "oversight.resumed", before, row, system, reason)


def _place(change: Change, tenant: str, project: str | None, ai_system_id: str | None) -> tuple[Place, str | None]:
    """And the AI system concerned, if there is one."""
    if (project is None) == (ai_system_id is None):
        raise InvalidValue("neither or both of an AI system and a project are named; name one of the two")
    if project is not None:
        return (tenant, project, ""), lookup.project(change.session, tenant, project).ai_system_id
    lookup.tenant(change.session, tenant)
    parts = select(ProjectRow.id).where(ProjectRow.tenant == tenant, ProjectRow.ai_system_id == ai_system_id)
    if change.session.exec(parts).first() is None:
        raise NotFound(
            f"no project of tenant {tenant!r} is part of an AI system {ai_system_id!r}"
            "; name the AI system of one of its projects"
        )
    return (tenant, "", ai_system_id or ""), ai_system_id


def _told(
    change: Change, action: str, before: StopRecord | None, row: StopRow, system: str | None, reason: str
) -> StopRecord:
    record = stop_record(row)
    detail = {"reason": reason} | ({"ai_system_id": system} if system else {})
    target = record.project or record.ai_system_id or ""
    change.report(action, record.tenant, target, before, record, project=record.project, detail=detail)
    return record
