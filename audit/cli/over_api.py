"""The record of an installation elsewhere, for commands, over the admin API of its gateway.

The methods of `audit.cli.on_files.OnFiles`, and evidence packs, which a gateway makes in the background. The gateway
records the person whose token it is as the actor.
"""

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from audit.cli.command_context import UsageMistake, elsewhere
from audit.cli.on_files import Erased, OnFiles, Row, Span
from audit.errors import AuditError
from audit.events.commitment import Field
from audit.files.new_file import new_file
from audit.law.deadlines import ClockTable
from audit.private.deletion import Hold

PACK_LOOK_S = 0.5


class Api(Protocol):
    """An admin API. Methods raise AuditError and UsageMistake; paths are in parts, not escaped."""

    def get(self, *path: str) -> Any: ...

    def post(self, *path: str, body: Row) -> Any: ...

    def download(self, take: Callable[[bytes], object], *path: str, max_bytes: int) -> None: ...


class OverApi:
    def __init__(self, api: Api) -> None:
        self._api = api

    # Requests of persons

    def receive(self, tenant: str, *, right: str, subject: str, received_at: str | None) -> Row:
        body = {"right": right, "subject": subject, "received_at": received_at}
        return self._right(tenant, "requests", body=body)

    def extend(self, tenant: str, matter: str, *, reason: str) -> Row:
        return self._right(tenant, "requests", matter, "extend", body={"reason": reason})

    def settle(self, tenant: str, matter: str, *, outcome: str, act_seq: int | None, reason: str | None) -> Row:
        body = {"outcome": outcome, "act_seq": act_seq, "reason": reason}
        return self._right(tenant, "requests", matter, "close", body=body)

    def requests(self, tenant: str) -> list[Row]:
        return list(self._api.get("tenants", tenant, "rights", "requests"))

    # Rights

    def access(self, tenant: str, subject: str) -> Row:
        return self._right(tenant, "access", body={"subject": subject})

    def erase(
        self, tenant: str, *, subject: str | None, records: Span | None, reason: str, backup_days: int | None
    ) -> Erased:
        if subject is None and records is None:
            raise UsageMistake(
                "over the admin API no whole tenant is erased; name --subject or --records, or run the command on the"
                " installation's own host"
            )
        if backup_days is not None:
            raise UsageMistake(
                "how long backups live is set for the gateway (audit.backup_days); leave --backup-days out"
            )
        said = self._right(tenant, "erase", body={"subject": subject, "reason": reason, **_ends(records)})
        return Erased(said["note"], said["says"])

    def restrict(self, tenant: str, subject: str, *, restricted: bool) -> None:
        self._right(tenant, "restrict", body={"subject": subject, "restricted": restricted})

    def rectify(self, tenant: str, seq: int, field: Field, value: Any) -> str:
        return str(self._right(tenant, "rectify", body={"seq": seq, "field": field, "value": value})["receipt"])

    def read(self, tenant: str, seq: int, *, reason: str) -> Row:
        said = self._api.post("tenants", tenant, "calls", str(seq), "content", body={"reason": reason})
        return dict(said["values"])

    # Holds

    def place_hold(self, tenant: str, *, subject: str | None, records: Span | None, reason: str) -> str:
        return str(self._right(tenant, "holds", body={"subject": subject, "reason": reason, **_ends(records)})["id"])

    def release_hold(self, tenant: str, hold: str) -> list[str]:
        return list(self._right(tenant, "holds", hold, "release", body={})["open_incidents"])

    def holds(self, tenant: str) -> list[Row]:
        found = self._api.get("tenants", tenant, "rights", "holds")
        return [Hold(tenant=tenant, **hold)._asdict() for hold in found]

    # Incidents, whose clocks are the gateway's

    def open_incident(self, tenant: str, clocks: ClockTable, **facts: Any) -> Row:
        return self._incident(tenant, body=facts)

    def update_incident(self, tenant: str, incident: str, clocks: ClockTable, **facts: Any) -> Row:
        return self._incident(tenant, incident, "update", body=facts)

    def notify_incident(self, tenant: str, incident: str, clocks: ClockTable, *, clock: str, authority: str) -> Row:
        return self._incident(tenant, incident, "notify", body={"clock": clock, "authority": authority})

    def close_incident(self, tenant: str, incident: str, clocks: ClockTable, *, reason: str, release: bool) -> Row:
        return self._incident(tenant, incident, "close", body={"reason": reason, "release": release})

    def incidents(self, tenant: str, clocks: ClockTable) -> list[Row]:
        return [_case_row(one) for one in self._api.get("tenants", tenant, "incidents")]

    # Evidence packs

    def size(self, tenant: str) -> int:
        """Return the number of records."""
        return int(self._api.get("tenants", tenant, "record")["records"])

    def export(
        self, tenant: str, output: Path, *, since: str | None, until: str | None, advance: Callable[[int], None]
    ) -> Row:
        """Have a pack made, and download it to `output`; returns its state. `advance` is called with the records that
        were added. Raises FileExistsError if `output` is there."""
        asked = {"since": since, "until": until, "reason": "export"}
        with new_file(output) as file:
            pack, told = self._api.post("tenants", tenant, "packs", body=asked), 0
            where = "tenants", tenant, "packs", pack["id"]
            while pack["state"] == "making":
                time.sleep(PACK_LOOK_S)
                pack = self._api.get(*where)
                advance(pack["done"] - told)
                told = pack["done"]
            if pack["state"] != "made":
                raise AuditError(f"the gateway could not make the pack: {pack['why']}; mend that, and ask again")
            digest = sha256()

            def take(piece: bytes) -> None:
                digest.update(piece)
                file.write(piece)

            self._api.download(take, *where, "file", max_bytes=pack["size_bytes"])
            if digest.hexdigest() != pack["sha256"]:
                raise AuditError("the pack did not arrive as the gateway made it; ask again")
        return dict(pack)

    def _right(self, tenant: str, *path: str, body: Row) -> Row:
        return dict(self._api.post("tenants", tenant, "rights", *path, body=body))

    def _incident(self, tenant: str, *path: str, body: Row) -> Row:
        return _case_row(self._api.post("tenants", tenant, "incidents", *path, body=body))


def opened_record(data: Path | None) -> OnFiles | OverApi:
    """The record that a command with this data folder is for."""
    api = elsewhere.get()(data)
    return OnFiles(data) if api is None else OverApi(api)


def _ends(records: Span | None) -> Row:
    return {} if records is None else {"first": records[0], "last": records[1]}


def _case_row(said: Row) -> Row:
    names = ("opened", "closed", "laws", "severity", "moments", "hold_ids", "deadlines")
    return {"incident_id": said["id"], **{name: said[name] for name in names}}
