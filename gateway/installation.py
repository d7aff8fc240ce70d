"""A data folder: what lies where in it, and how each is opened. One folder belongs to one cell.

<data>/cell                      its name
<data>/control.db                tenants, projects, keys, people, policies, backends, if not in PostgreSQL
<data>/ca/                       the cell's certificate authority, where it is on this machine
<data>/gateway/<tenant>/         the gateway's certificate for calls to that tenant's backends
<data>/audit/                    the record: log.db, signer.key, signer.vkey
<data>/secrets/pepper            keys the stored hashes of API keys; pepper.2, pepper.3 ... after rotations
<data>/secrets/redaction         keys the redaction action `hash`
<data>/catalogue.yaml            the installation's own places and operators, if it has any
"""

import os
from dataclasses import dataclass
from pathlib import Path

from audit import FileSigner
from gateway.credentials import TenantCredentials
from gateway.identity.keys import KeyHasher
from gateway.policies import PolicyCompiler
from gateway.policy_room import PolicyRoom
from gateway.store.control import Control, OnEvent
from gateway.store.database import Database
from gateway.store.inventory import Inventory
from regions.authority import CertificateAuthority
from regions.catalogue import Catalogue
from regions.identity import check_name, trust_domain
from regions.secret_file import create_secret, read_secret

DEFAULT_CELL = "local"


class InstallationError(Exception):
    """The folder is not there, or not what was asked for."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where everything of one cell lies on this machine."""

    data: Path
    cell: str

    @classmethod
    def create(cls, data: Path, cell: str | None = None) -> "Installation":
        """The folder `data`, made that of `cell` if it is nobody's yet. Raises InstallationError, IdentityError."""
        name = check_name(DEFAULT_CELL if cell is None else cell, "cell")
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = create_secret(data / "cell", f"{name}\n".encode()).decode().strip()
        if cell is not None and kept != cell:
            raise InstallationError(f"{data} belongs to cell {kept!r}, not {cell!r}")
        return cls(data, check_name(kept, "cell"))

    @classmethod
    def open(cls, data: Path) -> "Installation":
        """A folder made before. Raises InstallationError if there is none."""
        try:
            return cls(data, check_name(read_secret(data / "cell").decode().strip(), "cell"))
        except FileNotFoundError:
            hint = "create a tenant first, or name the folder by --data or DOMICILE_DATA"
            raise InstallationError(f"{data} holds no installation; {hint}") from None

    def database(self, url: str | None = None) -> Database:
        """At `url`, else where DOMICILE_DATABASE_URL says, else ``control.db`` in the folder."""
        return Database.open(self.data, url=url or os.environ.get("DOMICILE_DATABASE_URL") or None)

    def hasher(self) -> KeyHasher:
        return KeyHasher.open(self.pepper)

    @property
    def pepper(self) -> Path:
        return self.data / "secrets" / "pepper"

    def catalogue(self) -> Catalogue:
        own = self.data / "catalogue.yaml"
        return Catalogue.load(own if own.exists() else None)

    def policies(self) -> PolicyCompiler:
        return PolicyCompiler.open(self.catalogue().country_sets(), self.data / "secrets" / "redaction")

    def authority(self) -> CertificateAuthority:
        return CertificateAuthority.open(self.data / "ca", self.cell)

    def credentials(self) -> TenantCredentials:
        authority = self.authority() if (self.data / "ca" / "ca.key").exists() else None
        return TenantCredentials(self.data / "gateway", self.cell, self.data / "ca" / "ca.pem", authority)

    @property
    def audit_log(self) -> Path:
        return self.data / "audit" / "log.db"

    def signer(self) -> FileSigner:
        self.audit_log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FileSigner.open(self.audit_log.with_name("signer.key"), name=f"{trust_domain(self.cell)}/audit")

    def control(self, database: Database, *, actor: str, on_event: OnEvent) -> Control:
        return Control(
            database,
            cell=self.cell,
            hasher=self.hasher(),
            actor=actor,
            check_policy=self.policies().check,
            on_event=on_event,
        )

    def inventory(self, database: Database) -> Inventory:
        return Inventory(database)

    def policy_room(self, database: Database) -> PolicyRoom:
        return PolicyRoom(self.inventory(database), self.catalogue(), self.audit_log)
