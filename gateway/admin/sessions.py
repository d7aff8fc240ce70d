"""List and end the caller's own sessions and access tokens."""

from typing import Annotated

from fastapi import APIRouter, Depends

from gateway.admin.calls.access import Context, RequireToken
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.database.errors import Invalid
from gateway.identity.roles import Actor
from gateway.records.control import AccessTokenRecord

router = APIRouter(prefix="/sessions", tags=["login"], route_class=IdempotentRoute)

Caller = Annotated[Actor, Depends(RequireToken())]


@router.get("")
def list_sessions(actor: Caller, context: Context) -> tuple[AccessTokenRecord, ...]:
    """List the valid ones, oldest first. Empty for a machine, whose tokens are managed by the identity provider."""
    if actor.kind == "machine":
        return ()
    now = context.now()
    tokens = context.inventory.tokens(actor.tenant, actor.person)
    return tuple(token for token in tokens if token.revoked_at is None and token.expires_at > now)


@router.post("/{token}/end")
def end_session(actor: Caller, context: Context, token: str) -> AccessTokenRecord:
    """End a session or token immediately. 404 unless it is the caller's own."""
    if actor.kind == "machine":
        raise Invalid("a machine's token cannot be ended here; it ends at its expiry")
    return context.control(actor.name).close_session(actor.tenant, actor.person, token)
