"""The control database. Rows never leave `gateway.store`: what crosses is in `gateway.records.control`.

Every row carries its cell, and the configuration epoch of its last change, so that a gateway reads only what changed
since it last looked. Rows are never deleted, only revoked: a deletion would leave no trace to read.
"""

from datetime import UTC, datetime

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, ForeignKeyConstraint, Index, LargeBinary, MetaData, text
from sqlalchemy.orm import registry
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

NAMING = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An instant. SQLite forgets the zone, so it is UTC going in and coming out; a naive datetime is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Row(SQLModel, registry=registry(metadata=MetaData(naming_convention=NAMING))):
    """Base of our tables, on a registry of our own: SQLModel's default one would mix all packages' tables."""


class ConfigEpochRow(Row, table=True):
    """One row a cell: how often its configuration changed."""

    __tablename__ = "config_epoch"

    cell: str = Field(primary_key=True, max_length=31)
    value: int = 0


class InstallationRow(Row, table=True):
    """Whose database it is, in one row of id 1 (`gateway.database.ownership`).

    `log`: name of its record. `key`: SHA-256 (hex) of the public key that the record was signed with at that time.
    """

    __tablename__ = "installation"

    id: int = Field(primary_key=True)
    cell: str = Field(max_length=31)
    log: str = Field(max_length=200)
    key: str = Field(max_length=64)


class KeyFingerprintRow(Row, table=True):
    """Fingerprint of a key that all hosts of the cell share, by its path in the data folder
    (`gateway.installation.key_fingerprints`)."""

    __tablename__ = "key_fingerprint"

    name: str = Field(primary_key=True, max_length=64)
    fingerprint: str = Field(max_length=32)


class GatewayMarkRow(Row, table=True):
    """The last mark of a running gateway: random, and another one after each change (`gateway.database.watch`).

    `gateway` is an id that each process draws for itself.
    """

    __tablename__ = "gateway_mark"

    gateway: str = Field(primary_key=True, max_length=32)
    mark: str = Field(max_length=32)
    written_at: datetime = Field(sa_type=UtcDateTime)


class Changed(SQLModel):
    """What every table of configuration has."""

    cell: str = Field(max_length=31)
    epoch: int = Field(index=True)
    created_at: datetime = Field(sa_type=UtcDateTime)


class TenantRow(Changed, Row, table=True):
    __tablename__ = "tenant"

    id: str = Field(primary_key=True, max_length=31)
    display_name: str
    revoked_at: datetime | None = Field(None, sa_type=UtcDateTime)


class ProjectRow(Changed, Row, table=True):
    """A tenant's application, bound to one processing activity (GDPR 5(1)(b), 30)."""

    __tablename__ = "project"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    id: str = Field(primary_key=True, max_length=31)
    purpose: str
    legal_basis: str
    data_classes: list[str] = Field(sa_type=JSON)
    risk_class: str
    ai_system_id: str | None = None
    origins: list[str] | None = Field(None, sa_type=JSON)
    revoked_at: datetime | None = Field(None, sa_type=UtcDateTime)


class ApiKeyRow(Changed, Row, table=True):
    """A key's keyed hash (32 bytes) under generation `pepper` of the pepper; the key itself is nowhere.

    `last_used_at` is an observation, not configuration: writing it makes no epoch.
    """

    __tablename__ = "api_key"
    __table_args__ = (ForeignKeyConstraint(["tenant", "project"], ["project.tenant", "project.id"]),)

    id: str = Field(primary_key=True, max_length=8)
    tenant: str = Field(max_length=31)
    project: str = Field(max_length=31)
    label: str
    digest: bytes = Field(sa_type=LargeBinary)
    pepper: int = Field(1, sa_column_kwargs={"server_default": "1"})
    last_four: str = Field(max_length=4)
    scopes: dict[str, list[str]] = Field(sa_type=JSON)
    expires_at: datetime | None = Field(None, sa_type=UtcDateTime)
    replaced_by: str | None = Field(None, max_length=8)
    last_used_at: datetime | None = Field(None, sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(None, sa_type=UtcDateTime)


class PolicyVersionRow(Changed, Row, table=True):
    """Every version ever activated. Project '' is the tenant's own document, tenant '' the operator's, which bounds all
    tenants of the cell. At most one of a scope is active."""

    __tablename__ = "policy_version"
    __table_args__ = (
        Index(
            "uq_policy_version_active",
            "tenant",
            "project",
            unique=True,
            sqlite_where=text("active"),
            postgresql_where=text("active"),
        ),
    )

    tenant: str = Field(primary_key=True, max_length=31)
    project: str = Field(primary_key=True, max_length=31)
    number: int = Field(primary_key=True)
    sha256: str = Field(max_length=64)
    document: str
    active: bool
    activated_by: str


class PolicyProposalRow(Changed, Row, table=True):
    """A proposed document, numbered in its scope. People appear by ids. `submitted_with`: the actor, who names the
    token; `version`: what it became."""

    __tablename__ = "policy_proposal"

    tenant: str = Field(primary_key=True, max_length=31)
    project: str = Field(primary_key=True, max_length=31)
    number: int = Field(primary_key=True)
    sha256: str = Field(max_length=64)
    document: str
    submitted_by: str
    submitted_with: str | None = None
    approved_by: str | None = None
    approved_at: datetime | None = Field(None, sa_type=UtcDateTime)
    activates_at: datetime | None = Field(None, sa_type=UtcDateTime)
    version: int | None = None
    withdrawn_at: datetime | None = Field(None, sa_type=UtcDateTime)
    withdrawn_because: str | None = None


class BackendRow(Changed, Row, table=True):
    """A replica. `kind` openai or managed: a server that is not our engine, and `trust` how it proves who it is."""

    __tablename__ = "backend"

    id: str = Field(primary_key=True, max_length=31)
    tenant: str = Field(max_length=31, foreign_key="tenant.id")
    region: str = Field(max_length=31)
    url: str
    uri: str
    models: list[str] = Field(sa_type=JSON)
    kind: str = Field("domicile", max_length=16, sa_column_kwargs={"server_default": "domicile"})
    single_tenant: str | None = Field(None, max_length=16)
    trust: dict[str, str | bool] | None = Field(None, sa_type=JSON)
    cost: int | None = Field(None, sa_type=BigInteger)
    weights_sha256: str | None = Field(None, max_length=64)
    role: str = Field("mixed", max_length=16, sa_column_kwargs={"server_default": "mixed"})
    transfer: str | None = None
    revoked_at: datetime | None = Field(None, sa_type=UtcDateTime)


class BackendKeyRow(Row, table=True):
    """A public key that a managed service has shown, or that was accepted beforehand: SHA-256 of its SPKI, in hex."""

    __tablename__ = "backend_key"

    backend: str = Field(primary_key=True, max_length=31, foreign_key="backend.id")
    key_sha256: str = Field(primary_key=True, max_length=64)
    seen_at: datetime = Field(sa_type=UtcDateTime)


class PersonRow(Changed, Row, table=True):
    """A person with roles: in one tenant, or (tenant NULL) of the installation's own staff, whose roles hold in all.

    `id` is random, so that the record can name who was meant without knowing a name. `subject`: a digest of who they
    are at the identity provider, if that is how they come in. `made_by`: the actor who made them or gave them their
    roles, `roles_since` when; None: not known, and as long as they are there. `vouched_by`: a person's id, or the
    shell.
    """

    __tablename__ = "person"
    __table_args__ = (Index("uq_person_subject_tenant", "subject", "tenant", unique=True),)

    id: str = Field(primary_key=True, max_length=8)
    tenant: str | None = Field(None, max_length=31, foreign_key="tenant.id")
    display_name: str
    roles: list[str] = Field(sa_type=JSON)
    subject: str | None = Field(None, max_length=64)
    made_by: str | None = None
    roles_since: datetime | None = Field(None, sa_type=UtcDateTime)
    vouched_by: str | None = Field(None, max_length=8)
    vouched_at: datetime | None = Field(None, sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(None, sa_type=UtcDateTime)


class AccessTokenRow(Changed, Row, table=True):
    """A person's secret for the admin API, hashed like a key. Person NULL: a bootstrap token, for one call.

    `authenticated_at`: of a session, when the person last showed who they are; NULL where that is not known.
    """

    __tablename__ = "access_token"

    id: str = Field(primary_key=True, max_length=8)
    person: str | None = Field(None, max_length=8, foreign_key="person.id")
    label: str
    digest: bytes = Field(sa_type=LargeBinary)
    pepper: int = Field(1, sa_column_kwargs={"server_default": "1"})
    last_four: str = Field(max_length=4)
    expires_at: datetime = Field(sa_type=UtcDateTime)
    made_by: str | None = None
    revoked_at: datetime | None = Field(None, sa_type=UtcDateTime)
    authenticated_at: datetime | None = Field(None, sa_type=UtcDateTime)


class AnswerRow(Row, table=True):
    """The answer to a call with an Idempotency-Key, sealed; None while the call runs. Not configuration: no epoch.

    `id`: a digest of cell, caller and key. `holder`: which attempt has the key, since `created_at`. `made`: what it
    changed, written in the transaction of the change.
    """

    __tablename__ = "idempotent_answer"

    id: str = Field(primary_key=True, max_length=64)
    cell: str = Field(max_length=31)
    created_at: datetime = Field(sa_type=UtcDateTime, index=True)
    sealed: bytes | None = Field(None, sa_type=LargeBinary)
    holder: str | None = Field(None, max_length=32)
    made: str | None = Field(None, max_length=400)
