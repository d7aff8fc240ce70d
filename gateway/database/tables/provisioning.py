"""People and groups as an identity provider provisions them by SCIM. Not configuration: no epoch; what follows for
persons and their roles is in `gateway.database.tables.control`."""

from datetime import datetime

from sqlalchemy import Index
from sqlmodel import Field

from gateway.database.tables.control import Row, UtcDateTime


class _Provisioned(Row):
    """`name_key`: the name as it is compared, without case. `version`: raised by every change."""

    id: str = Field(primary_key=True, max_length=32)
    cell: str = Field(max_length=31)
    name: str = Field(max_length=256)
    name_key: str = Field(max_length=256)
    external_id: str | None = Field(None, max_length=256)
    created_at: datetime = Field(sa_type=UtcDateTime)
    changed_at: datetime = Field(sa_type=UtcDateTime)
    version: int = 1


class ScimUserRow(_Provisioned, table=True):
    """`name` is SCIM's ``userName``. `subject`: as a person's, the digest of who they are at the identity provider."""

    __tablename__ = "scim_user"
    __table_args__ = (
        Index("uq_scim_user_name", "cell", "name_key", unique=True),
        Index("uq_scim_user_subject", "subject", unique=True),
    )

    display_name: str = Field(max_length=200)
    active: bool
    subject: str | None = Field(None, max_length=64)


class ScimGroupRow(_Provisioned, table=True):
    """`name` is SCIM's ``displayName``, which `oidc.roles` maps to roles."""

    __tablename__ = "scim_group"
    __table_args__ = (Index("uq_scim_group_name", "cell", "name_key", unique=True),)


class ScimMemberRow(Row, table=True):
    __tablename__ = "scim_member"
    __table_args__ = (Index("ix_scim_member_user", "user"),)

    group: str = Field(primary_key=True, max_length=32, foreign_key="scim_group.id")
    user: str = Field(primary_key=True, max_length=32, foreign_key="scim_user.id")
