"""AI systems in the records: their calls, refusals, acts and incidents, as ai_systems.json has them."""

from __future__ import annotations

from typing import Any

LEFT_OUT = ("v", "event_id", "gateway_node", "boot_id", "tenant", "ai_system_id")


class Systems:
    """`take` each record; `listed` is what the file has to say."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self.changes: list[dict[str, Any]] = []

    def take(self, seq: int, event: dict[str, Any]) -> None:
        kind, name = event["type"], event.get("ai_system_id")
        if kind in ("inference.accepted", "inference.denied"):
            if name is not None:
                self.take_call(self.of(name), event)
        elif kind == "model.changed" or kind.startswith("oversight."):
            act = {field: value for field, value in event.items() if field not in LEFT_OUT}
            (self.changes if name is None else self.of(name)["oversight_and_changes"]).append(dict(act, seq=seq))
        elif kind.startswith("incident.") and name is not None:
            self.of(name)["incidents"][event["incident_id"]] = kind

    def take_call(self, system: dict[str, Any], event: dict[str, Any]) -> None:
        system["projects"].add(event["project"])
        system["models"].add(event.get("model_served") or event["model_requested"])
        if "risk_class" in event:
            system["risk_classes"].add(event["risk_class"])
        if event["type"] == "inference.accepted":
            system["calls"] += 1
            return
        for reason in event["decision"]["reasons"]:
            refused = system["refused_by_rule"]
            refused[reason["rule"]] = refused.get(reason["rule"], 0) + 1

    def of(self, name: str) -> dict[str, Any]:
        if name not in self.known:
            self.known[name] = {
                "ai_system_id": name,
                "risk_classes": set(),
                "projects": set(),
                "models": set(),
                "calls": 0,
                "refused_by_rule": {},
                "oversight_and_changes": [],
                "incidents": {},
            }
        return self.known[name]

    def listed(self) -> dict[str, Any]:
        return {
            "statement": str(len(self.known)) + " AI systems are on record in this period.",
            "hand_over": "domicile audit ai-act --system ID gives the records of one",
            "systems": [
                {
                    field: sorted(value) if isinstance(value, set) else value
                    for field, value in dict(one, stopped_since=stopped_since(one["oversight_and_changes"])).items()
                }
                for _, one in sorted(self.known.items())
            ],
            "of_no_system_or_of_all": self.changes,
        }


def stopped_since(acts: list[dict[str, Any]]) -> str | None:
    """When the system was last stopped as a whole, if it was not resumed since."""
    halts = [one for one in acts if one["type"] in ("oversight.stopped", "oversight.resumed") and "project" not in one]
    return str(halts[-1]["ts"]) if halts and halts[-1]["type"] == "oversight.stopped" else None
