"""What gateways saw of keys, written in batches: when each was last used, and its hash under the newer pepper."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, or_
from sqlmodel import Session, col, func, select, update

from gateway.database.database import Database
from gateway.database.epoch import bump_epoch
from gateway.database.tables.control import AccessTokenRow, ApiKeyRow, TenantRow


@dataclass(frozen=True, slots=True)
class Rehash:
    """A key's hash (32 bytes) under generation `pepper`."""

    digest: bytes
    pepper: int


def write_uses(database: Database, keys: Collection[str], at: datetime) -> None:
    """No new epoch: no other gateway has to learn of it. An earlier instant never replaces a later one."""
    if not keys:
        return
    row = ApiKeyRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
    statement = (
        update(row)
        .where(row.c.id == bindparam("key"), or_(row.c.last_used_at.is_(None), row.c.last_used_at < at))
        .values(last_used_at=at)
    )
    with database.write() as session:
        session.connection().execute(statement, [{"key": key} for key in sorted(keys)])


def write_rehashes(database: Database, cell: str, rehashes: Mapping[str, Rehash]) -> None:
    """Every gateway learns of the new hashes before the old pepper may go. Repeating it changes nothing."""
    if not rehashes:
        return
    with database.write() as session:
        epoch = bump_epoch(session, cell)
        for key in sorted(rehashes):
            row = session.get(ApiKeyRow, key)
            if row is not None and row.pepper < rehashes[key].pepper:
                row.digest, row.pepper, row.epoch = rehashes[key].digest, rehashes[key].pepper, epoch


def newest_pepper(session: Session, now: datetime) -> int:
    """The newest generation of the pepper that a living key or token is hashed under; 1 if there is none."""
    keys = select(func.max(ApiKeyRow.pepper)).where(col(ApiKeyRow.revoked_at).is_(None))
    tokens = select(func.max(AccessTokenRow.pepper)).where(
        col(AccessTokenRow.revoked_at).is_(None), col(AccessTokenRow.expires_at) > now
    )
    return max(session.exec(keys).one() or 1, session.exec(tokens).one() or 1)


def count_below(session: Session, pepper: int, now: datetime) -> int:
    """Living keys and tokens whose hash is of an older generation than `pepper`."""
    keys = select(func.count()).where(
        ApiKeyRow.pepper < pepper,
        col(ApiKeyRow.revoked_at).is_(None),
        or_(col(ApiKeyRow.expires_at).is_(None), col(ApiKeyRow.expires_at) > now),
        col(ApiKeyRow.tenant).not_in(select(TenantRow.id).where(col(TenantRow.revoked_at).is_not(None))),
    )
    tokens = select(func.count()).where(
        AccessTokenRow.pepper < pepper,
        col(AccessTokenRow.revoked_at).is_(None),
        col(AccessTokenRow.expires_at) > now,
    )
    return session.exec(keys).one() + session.exec(tokens).one()
