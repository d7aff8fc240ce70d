"""Commitments of answers to their model's activations, where policy demands them (``models.commitments``).

Our engine reads this from the request token, and gives the commitment with the end of each choice
(`backend.activations`). It goes to the value store and not to the client: who has the weights can test a guess of the
text with it.
"""

import time
from typing import Final

from audit.events.private_value import Private
from gateway.errors import BackendFailed
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.stages import Routed

_DAY_MS: Final = 86_400_000


def are_demanded(routed: Routed) -> bool:
    return routed.redacted.allowed.commits and routed.request.call.endpoint.writes


def confirm(routed: Routed, received: ReceivedAnswer) -> None:
    """Raise BackendFailed if a choice has no commitment that is demanded: the engine is an older version, or does not
    check request tokens."""
    if are_demanded(routed) and len(received.activations) < routed.request.call.choices:
        raise BackendFailed("The backend did not commit to its activations, which policy demands")


def with_commitments(private: Private | None, routed: Routed, received: ReceivedAnswer) -> Private | None:
    """Return the private values of an outcome with the commitments, by choice, under their own retention."""
    if not are_demanded(routed):
        return private
    days, said = routed.redacted.allowed.retention.commitment_days, received.activations
    kept = f"commitments_{days}d", int(time.time() * 1000) + days * _DAY_MS
    values = [said[index] for index in sorted(said)]
    if private is None:
        return Private({"activations": values}, routed.request.subject, *kept)
    return Private(
        {**private.values, "activations": values},
        private.subject,
        private.retention_class,
        private.expires,
        {"activations": kept},
    )
