"""Before a backend ends: let its engine end what runs, and wipe its cache and weights; what it says of that is proof.

Our engine does both when it is sent to sleep (``POST /sleep``). One that does not know how, or does not answer any
more, loses them with its process, and that is said instead.
"""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.errors import GatewayError
from gateway.routes import Routes
from gateway.upstream import Upstream
from regions.fleet import Backend

SLEEP_PATH = "/sleep"
GRACE_S = 30.0
TIMEOUT_S = 60.0
WITH_PROCESS: Mapping[str, str] = {"cache": "ended_with_process"}


class Slept(BaseModel):
    """What the engine answers."""

    model_config = ConfigDict(frozen=True)

    status: str
    released_bytes: int = Field(ge=0)


async def release(upstream: Upstream, routes: Routes, backend: Backend) -> Mapping[str, str]:
    """What goes on record with the end of `backend`. Does not raise."""
    body = b'{"grace_s": %d}' % GRACE_S
    try:
        said = await upstream.fetch(routes.target(backend), SLEEP_PATH, TIMEOUT_S, body)
        slept = Slept.model_validate_json(said or b"")
    except (GatewayError, ValidationError):
        return WITH_PROCESS
    if slept.status != "asleep":
        return WITH_PROCESS
    return {"cache": "zeroed", "released_bytes": str(slept.released_bytes)}
