"""API keys of a tenant's projects. Only the response that creates a key contains the key itself."""

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import Field

from gateway.admin.calls.access import Context, IfMatch, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import After, Body, Instant, Limit, Name, tagged
from gateway.identity.roles import Actor
from gateway.records.control import UNBOUNDED, KeyRecord, Scopes
from gateway.store.control.keys import MAX_GRACE
from gateway.store.pagination import Page

router = APIRouter(prefix="/tenants/{tenant}/keys", tags=["keys"], route_class=IdempotentRoute)

Manager = Annotated[Actor, Depends(RequirePermission("keys.manage"))]


class NewKey(Body):
    project: Name
    label: str = ""
    scopes: Scopes = UNBOUNDED
    expires_at: Instant | None = None


class Rotation(Body):
    """`grace_hours`: time for which the old key stays valid. `expires_at`: by default, the new key has the lifetime of
    the old one."""

    grace_hours: Annotated[int, Field(ge=0, le=MAX_GRACE // timedelta(hours=1))] = 24
    expires_at: Instant | None = None


class KeyWithSecret(KeyRecord):
    """A new key. `key` is shown once and is not stored."""

    key: str = Field(repr=False)


@router.get("", dependencies=[Depends(RequirePermission("keys.read"))])
def list_keys(
    context: Context, tenant: str, project: Name | None = None, after: After = None, limit: Limit = 50
) -> Page[KeyRecord]:
    return context.pages.keys(tenant, project, after, limit)


@router.post("", status_code=201)
def create_key(actor: Manager, context: Context, response: Response, tenant: str, new: NewKey) -> KeyWithSecret:
    expires_at: datetime | None = new.expires_at
    record, key = context.control(actor.name).create_key(
        tenant, new.project, label=new.label, scopes=new.scopes, expires_at=expires_at
    )
    return _shown_once(response, record, key.token)


@router.get("/{key}", dependencies=[Depends(RequirePermission("keys.read"))])
def show_key(context: Context, response: Response, tenant: str, key: str) -> KeyRecord:
    return tagged(response, context.inventory.key(tenant, key))


@router.post("/{key}/rotate", status_code=201)
def rotate_key(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, key: str, rotation: Rotation
) -> KeyWithSecret:
    """Create the successor of the key. Both are valid until the grace period ends."""
    record, secret = context.control(actor.name, expected).rotate_key(
        tenant, key, grace=timedelta(hours=rotation.grace_hours), expires_at=rotation.expires_at
    )
    return _shown_once(response, record, secret.token)


@router.post("/{key}/revoke")
def revoke_key(
    actor: Manager, context: Context, expected: IfMatch, response: Response, tenant: str, key: str
) -> KeyRecord:
    """Revoke the key. Every gateway refuses it within a second. This cannot be undone."""
    return tagged(response, context.control(actor.name, expected).revoke_key(tenant, key))


def _shown_once(response: Response, record: KeyRecord, token: str) -> KeyWithSecret:
    tagged(response, record)
    response.headers["cache-control"] = "no-store"
    return KeyWithSecret(**dict(record), key=token)
