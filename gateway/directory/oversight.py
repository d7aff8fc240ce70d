"""Stops of AI systems and projects by a person (AI Act 14(4)(e)): once a gateway knows of a stop, no answer is
delivered.

A call is checked when it is decided, before each attempt, at each piece of a stream and before a whole answer is sent.
A running call is cut, and recorded as aborted.
"""

from collections.abc import Iterable

from gateway.errors import PolicyDenied
from gateway.identity.principal import Principal
from gateway.store.oversight import Place, StopRecord
from policy.reason import Reason

RULE = "oversight.stopped"
ARTICLE = "AI Act 14(4)(e), 26(5)"


class Stops:
    def __init__(self) -> None:
        self._standing: dict[Place, StopRecord] = {}

    def replace(self, records: Iterable[StopRecord]) -> None:
        """Replace all stops by those of the control store."""
        self._standing = {record.place: record for record in records if record.resumed_at is None}

    def stands(self, principal: Principal) -> StopRecord | None:
        """The stop that applies to `principal`, None if there is none."""
        if not self._standing:
            return None
        tenant, system = principal.tenant, principal.ai_system_id
        stop = self._standing.get((tenant, principal.project, ""))
        if stop is None and system is not None:
            stop = self._standing.get((tenant, "", system))
        return stop

    def check(self, principal: Principal) -> None:
        """Raises PolicyDenied if a stop applies, naming what was stopped and when, but not by whom."""
        if self._standing and (stop := self.stands(principal)) is not None:
            what = f"project {stop.project}" if stop.project else f"AI system {stop.ai_system_id}"
            because = f"{what} was stopped by a person at {stop.stopped_at:%Y-%m-%dT%H:%M:%SZ} ({stop.reason})"
            raise PolicyDenied([Reason(RULE, None, because, ARTICLE)])
