"""Records in the words of OCSF 1.3 (Open Cybersecurity Schema Framework), one JSON object each, for a SIEM.

Calls are API Activity (6003), sign-ins Authentication (3002), administration Entity Management (3004), all else
Application Lifecycle (6002). The record itself is under `unmapped`, with its seq: what proves it is the pack.
"""

from datetime import datetime
from typing import Any

VERSION = "1.3.0"
_PRODUCT = {"name": "Domicile", "vendor_name": "Domicile"}
_API, _AUTHENTICATION, _ENTITY, _LIFECYCLE = 6003, 3002, 3004, 6002
_ACTIVITIES = {"created": 1, "registered": 1, "changed": 3, "rotated": 3, "activated": 3, "revoked": 4}


def ocsf(seq: int, event: dict[str, Any]) -> dict[str, Any]:
    """`type_uid` is class_uid * 100 + activity_id; `status_id` 1 success, 2 failure; `severity_id` 1 to 4."""
    kind = str(event.get("type"))
    class_uid, activity_id = _class(kind)
    failed = kind.endswith((".denied", ".failed", ".aborted", ".refused", "_failed", "_degraded"))
    mapped: dict[str, Any] = {
        "class_uid": class_uid,
        "category_uid": class_uid // 1000,
        "activity_id": activity_id,
        "type_uid": class_uid * 100 + activity_id,
        "activity_name": kind,
        "time": round(datetime.fromisoformat(event["ts"]).timestamp() * 1000),
        "severity_id": 3 if failed else 4 if kind.startswith("incident.") else 1,
        "status_id": 2 if failed else 1,
        "metadata": {"version": VERSION, "product": _PRODUCT, "uid": event["event_id"], "sequence": seq}
        | {"tenant_uid": event["tenant"], "log_name": "audit"},
        "unmapped": {"seq": seq, **event},
    }
    if who := event.get("key_id") or event.get("actor"):
        mapped["actor"] = {"user": {"uid": who, "type": "Service"}}
    if class_uid == _API:
        mapped["api"] = {"operation": event.get("endpoint", kind), "request": {"uid": event.get("request_id", "")}}
        if "inference_country" in event:
            mapped["dst_endpoint"] = {"uid": event["backend_id"], "location": {"country": event["inference_country"]}}
    if class_uid == _ENTITY:
        mapped["entity"] = {"uid": str(event.get("target", event["tenant"])), "type": kind.split(".")[1]}
    if "status" in event:
        mapped["status_code"] = str(event["status"])
    return mapped


def _class(kind: str) -> tuple[int, int]:
    room, _, act = kind.rpartition(".")
    if kind.startswith(("inference.", "routing.", "content.", "log.read")):
        return _API, 2 if kind in ("content.accessed", "log.read") else 1
    if kind.startswith("auth."):
        return _AUTHENTICATION, 1
    if room.startswith("admin"):
        return _ENTITY, _ACTIVITIES.get(act, 99)
    return _LIFECYCLE, {"system.start": 3, "system.stop": 4}.get(kind, 99)
