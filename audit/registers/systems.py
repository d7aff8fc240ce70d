"""The AI systems of a pack: how each was used, and who stopped, changed or overruled it (AI Act 12, 14, 19, 26(5))."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from audit.events.event import InferenceAccepted, InferenceDenied, ModelChanged
from audit.events.incident import Incident, Oversight
from audit.events.leaf import Leaf


@dataclass(slots=True)
class System:
    """Calls are counted; acts and changes are listed one by one, with the number of their record."""

    calls: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    risk_classes: set[str] = field(default_factory=set)
    projects: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    acts: list[dict[str, Any]] = field(default_factory=list)
    incidents: dict[str, str] = field(default_factory=dict)

    @property
    def stopped_since(self) -> str | None:
        """When it was last stopped as a whole, if it was not resumed since, as far as the pack reaches."""
        last = next((one for one in reversed(self.acts) if one["type"] in _HALTS and "project" not in one), None)
        return last["ts"] if last is not None and last["type"] == "oversight.stopped" else None


_HALTS = ("oversight.stopped", "oversight.resumed")


class Systems:
    """`take` each record once. Memory grows with systems and acts, not with calls."""

    def __init__(self) -> None:
        self.by_id: dict[str, System] = {}
        self.changes: list[dict[str, Any]] = []  # of models, that name no system: they are of whatever calls the model

    def take(self, seq: int, leaf: Leaf) -> None:
        event = leaf.event
        if isinstance(event, InferenceAccepted | InferenceDenied) and event.ai_system_id is not None:
            system = self._of(event.ai_system_id)
            system.projects.add(event.project)
            served = event.model_served if isinstance(event, InferenceAccepted) else None
            system.models.add(served or event.model_requested)  # a name of a project's own is no model
            if event.risk_class is not None:
                system.risk_classes.add(event.risk_class)
            if isinstance(event, InferenceAccepted):
                system.calls += 1
            else:
                system.refused.update(reason.rule for reason in event.decision.reasons)
        elif isinstance(event, ModelChanged | Oversight):
            act = event.model_dump(mode="json", exclude_none=True, exclude={"tenant", "ai_system_id"})
            act = {"seq": seq, "ts": leaf.stamp.ts, **act}
            if event.ai_system_id is not None:
                self._of(event.ai_system_id).acts.append(act)
            else:
                self.changes.append(act)
        elif isinstance(event, Incident) and event.ai_system_id is not None:
            self._of(event.ai_system_id).incidents[event.incident_id] = event.type

    def _of(self, system: str) -> System:
        return self.by_id.setdefault(system, System())

    def as_json(self) -> dict[str, Any]:
        return {
            "statement": f"{len(self.by_id)} AI systems are on record in this period.",
            "hand_over": "domicile audit ai-act --system ID gives the records of one",
            "systems": [
                {
                    "ai_system_id": name,
                    "risk_classes": sorted(one.risk_classes),
                    "projects": sorted(one.projects),
                    "models": sorted(one.models),
                    "calls": one.calls,
                    "refused_by_rule": dict(sorted(one.refused.items())),
                    "stopped_since": one.stopped_since,
                    "oversight_and_changes": one.acts,
                    "incidents": one.incidents,
                }
                for name, one in sorted(self.by_id.items())
            ],
            "of_no_system_or_of_all": self.changes,
        }
