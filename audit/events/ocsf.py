"""Records as events of OCSF 1.3.0 (Open Cybersecurity Schema Framework), one JSON object each, for a SIEM.

Calls and reads are API Activity (6003), failed sign-ins Authentication (3002), administration Entity Management
(3004), everything else Application Lifecycle (6002), as each event type declares (`audit.events.base`). The record
itself is under `unmapped`, with its number. `tests/vectors/ocsf/` has the published schema of these classes; every
event type is validated against it.

Standard library only and valid in Python 3.9, so that the verifier of a pack can make the same events again.
"""

from __future__ import annotations

from calendar import timegm
from functools import lru_cache
from time import strptime
from typing import Any

from audit.events.event_types import OCSF_CLASSES

VERSION = "1.3.0"
PRODUCT = {"name": "Domicile", "vendor_name": "Domicile"}
API_ACTIVITY, AUTHENTICATION, ENTITY_MANAGEMENT, APPLICATION_LIFECYCLE = 6003, 3002, 3004, 6002
CREATE, READ, UPDATE, DELETE, ACTIVATE, OTHER = 1, 2, 3, 4, 10, 99
LOGON, START, STOP = 1, 3, 4
SUCCESS, FAILURE = 1, 2
INFORMATIONAL, MEDIUM, HIGH = 1, 3, 4
OF_OTHERS = (APPLICATION_LIFECYCLE, OTHER, SUCCESS, INFORMATIONAL)
"""Class of a type that this version does not know."""


def ocsf(seq: int, event: dict[str, Any]) -> dict[str, Any]:
    """The OCSF event of record `seq`. `type_uid` is class_uid * 100 + activity_id.

    Raises ValueError if the record has no valid time.
    """
    kind = str(event.get("type"))
    class_uid, activity_id, status_id, severity_id = OCSF_CLASSES.get(kind, OF_OTHERS)
    metadata = {"version": VERSION, "product": PRODUCT, "uid": event["event_id"], "sequence": seq}
    metadata.update({"tenant_uid": event["tenant"], "log_name": "audit"})
    mapped: dict[str, Any] = {
        "class_uid": class_uid,
        "category_uid": class_uid // 1000,
        "activity_id": activity_id,
        "type_uid": class_uid * 100 + activity_id,
        "activity_name": kind,
        "time": _milliseconds(event["ts"]),
        "severity_id": severity_id,
        "status_id": status_id,
        "metadata": metadata,
        "unmapped": dict(event, seq=seq),
    }
    if "status" in event:
        mapped["status_code"] = str(event["status"])
    if "reason" in event:
        mapped["status_detail"] = str(event["reason"])
    mapped.update(_OF_CLASS[class_uid](kind, event))
    return mapped


def _api_activity(kind: str, event: dict[str, Any]) -> dict[str, Any]:
    """Requires `actor`, `api` and `src_endpoint`. The record has no address of a client: its source is the application
    and the key, or the gateway itself."""
    api: dict[str, Any] = {"operation": str(event.get("endpoint", kind))}
    if "request_id" in event:
        api["request"] = {"uid": event["request_id"]}
    mapped = {"actor": _actor(event), "api": api, "src_endpoint": _source(event)}
    if "inference_country" in event:
        place = {"country": event["inference_country"]}
        mapped["dst_endpoint"] = {"uid": event["backend_id"], "location": place}
    elif "backend_id" in event:
        mapped["dst_endpoint"] = {"uid": event["backend_id"]}
    return mapped


def _authentication(kind: str, event: dict[str, Any]) -> dict[str, Any]:
    """Requires `user` and one of `service` and `dst_endpoint`. A key that is not known has no id."""
    user = {"uid": event["key_id"]} if event.get("key_id") else {"name": "unidentified"}
    return {"user": user, "service": {"name": PRODUCT["name"]}}


def _entity_management(kind: str, event: dict[str, Any]) -> dict[str, Any]:
    """Requires `entity`."""
    return {"entity": {"uid": str(event.get("target", event["tenant"])), "type": kind.split(".")[1]}}


def _application_lifecycle(kind: str, event: dict[str, Any]) -> dict[str, Any]:
    """Requires `app`."""
    return {"app": PRODUCT}


_OF_CLASS = {
    API_ACTIVITY: _api_activity,
    AUTHENTICATION: _authentication,
    ENTITY_MANAGEMENT: _entity_management,
    APPLICATION_LIFECYCLE: _application_lifecycle,
}


def _actor(event: dict[str, Any]) -> dict[str, Any]:
    if who := event.get("key_id") or event.get("actor"):
        return {"user": {"uid": str(who), "type": "Service", "type_id": OTHER}}
    return {"app_name": PRODUCT["name"]}


def _source(event: dict[str, Any]) -> dict[str, Any]:
    if "key_id" in event:
        source = {"uid": str(event["key_id"])}
        return dict(source, svc_name=event["project"]) if "project" in event else source
    return {"uid": str(event.get("gateway_node") or event.get("actor") or PRODUCT["name"])}


def _milliseconds(ts: str) -> int:
    """Milliseconds of RFC 3339 UTC with milliseconds, since the epoch."""
    return _minute(ts[:16]) + int(ts[17:19]) * 1000 + int(ts[20:23])


@lru_cache(maxsize=64)  # thousands of records share a minute
def _minute(text: str) -> int:
    """Milliseconds since the epoch."""
    return timegm(strptime(text, "%Y-%m-%dT%H:%M")) * 1000
