"""A data folder: what lies where in it, and how each is opened. One folder belongs to one cell.

<data>/cell                      its name
<data>/control.db                tenants, projects, keys, people, policies, backends, if not in PostgreSQL
<data>/ca/                       the cell's certificate authority, where it is on this machine
<data>/gateway/<tenant>/         the gateway's certificate for calls to that tenant's backends
<data>/audit/                    the record: log.db, signer.key, signer.vkey
<data>/audit/side.db             what the record commits to and may forget, encrypted
<data>/audit/keys/               the keys above side.db, one a tenant
<data>/secrets/pepper            keys the stored hashes of API keys; pepper.2, pepper.3 ... after rotations
<data>/secrets/redaction         keys the redaction action `hash`
<data>/secrets/backends/TENANT/  keys that the tenant's own servers ask for
<data>/secrets/requests          signs the tokens of calls to backends; they check by ca/requests.pem
<data>/catalogue.yaml            the installation's own places and operators, if it has any
<data>/registers.json            parties, contracts and categories of people for evidence packs, if it has any
"""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from audit import AuditLog, Custody, FileKeyProvider, FileSigner, KeyProvider, Signer
from audit.keys import KeyRing
from audit.master import FileMaster
from audit.new_file import make_private_folder
from audit.place import open_reader
from audit.side import SideStore
from audit.tiles import TILES
from gateway.credentials import TenantCredentials
from gateway.identity.keys import KeyHasher
from gateway.policies import PolicyCompiler
from gateway.policy_room import PolicyRoom
from gateway.request_token import RequestSigner
from gateway.settings import Secrets, Settings, SettingsError, load_settings
from gateway.sinks import sinks_of
from gateway.store.control import Control, OnEvent
from gateway.store.database import POOL_SIZE, Database
from gateway.store.inventory import Inventory
from regions.authority import CertificateAuthority
from regions.catalogue import Catalogue
from regions.identity import check_name, trust_domain
from regions.sealed import PLAIN, SealedFiles, SecretFiles
from regions.secret_file import create_secret, read_secret

if TYPE_CHECKING:
    from gateway.secrets.transit import VaultSigner
    from gateway.secrets.vault import VaultClient

DEFAULT_CELL = "local"


class InstallationError(Exception):
    """The folder is not there, or not what was asked for."""


def configured() -> Settings:
    """As the environment says, and the file that DOMICILE_CONFIG names: what commands have that are given no file.

    Raises InstallationError.
    """
    named = os.environ.get("DOMICILE_CONFIG")
    try:
        return load_settings(Path(named) if named else None)
    except SettingsError as error:
        raise InstallationError(str(error)) from error


def configured_secrets() -> Secrets:
    """Raises InstallationError."""
    return configured().secrets


@dataclass(frozen=True)
class Installation:
    """Where everything of one cell lies on this machine, and who holds the key to its secrets."""

    data: Path
    cell: str
    secrets: Secrets = field(default_factory=configured_secrets)

    @classmethod
    def create(cls, data: Path, cell: str | None = None) -> "Installation":
        """The folder `data`, made that of `cell` if it is nobody's yet. Raises InstallationError, IdentityError."""
        name = check_name(DEFAULT_CELL if cell is None else cell, "cell")
        make_private_folder(data)
        kept = create_secret(data / "cell", f"{name}\n".encode()).decode().strip()
        if cell is not None and kept != cell:
            raise InstallationError(f"{data} belongs to cell {kept!r}, not {cell!r}")
        return cls(data, check_name(kept, "cell"))

    @classmethod
    def open(cls, data: Path, secrets: Secrets | None = None) -> "Installation":
        """A folder made before. Raises InstallationError if there is none."""
        try:
            cell = check_name(read_secret(data / "cell").decode().strip(), "cell")
            return cls(data, cell, configured_secrets() if secrets is None else secrets)
        except FileNotFoundError:
            hint = "create a tenant first, or name the folder by --data or DOMICILE_DATA"
            raise InstallationError(f"{data} holds no installation; {hint}") from None

    def database(self, url: str | None = None, *, pool_size: int = POOL_SIZE) -> Database:
        """At `url`, else where DOMICILE_DATABASE_URL says, else ``control.db`` in the folder."""
        url = url or os.environ.get("DOMICILE_DATABASE_URL") or None
        return Database.open(self.data, url=url, pool_size=pool_size)

    def models(self, settings: Settings | None = None) -> Path:
        """The folder that weights of deployments are found in. Raises InstallationError."""
        return (settings or configured()).fleet.models or self.data / "models"

    def hasher(self) -> KeyHasher:
        return KeyHasher.open(self.pepper, self.secret_files)

    @property
    def pepper(self) -> Path:
        return self.data / "secrets" / "pepper"

    @property
    def redaction_secret(self) -> Path:
        return self.data / "secrets" / "redaction"

    @property
    def backend_keys(self) -> Path:
        return self.data / "secrets" / "backends"

    def catalogue(self) -> Catalogue:
        own = self.data / "catalogue.yaml"
        return Catalogue.load(own if own.exists() else None)

    def policies(self) -> PolicyCompiler:
        return PolicyCompiler.open(self.catalogue().country_sets(), self.redaction_secret, self.secret_files)

    def authority(self) -> CertificateAuthority:
        return CertificateAuthority.open(self.authority_key.parent, self.cell, files=self.secret_files)

    @property
    def authority_key(self) -> Path:
        return self.data / "ca" / "ca.key"

    def credentials(self) -> TenantCredentials:
        def find() -> CertificateAuthority | None:
            return self.authority() if self.authority_key.exists() else None

        return TenantCredentials(self.data / "gateway", self.cell, self.data / "ca" / "ca.pem", find(), find)

    def request_signer(self) -> RequestSigner:
        """Signs the tokens of calls to our own backends; its key is made on first use."""
        return RequestSigner.open(self.request_secret, self.secret_files)

    def find_request_signer(self) -> RequestSigner | None:
        return self.request_signer() if self.request_secret.exists() else None

    def request_key(self) -> Path:
        """What backends check those tokens by."""
        return self.request_signer().write_public(self.data / "ca" / "requests.pem").absolute()

    @property
    def request_secret(self) -> Path:
        return self.data / "secrets" / "requests"

    @property
    def audit_log(self) -> Path:
        return self.data / "audit" / "log.db"

    @property
    def side_store(self) -> Path:
        return self.audit_log.with_name("side.db")

    @cached_property
    def keys(self) -> KeyRing:
        """Those above everything that is encrypted here. Raises KeyProviderError."""
        folder = self.audit_log.with_name("keys")
        if self._vault is None:
            return FileKeyProvider.open(folder)
        from gateway.secrets.transit import VaultMaster

        make_private_folder(folder)
        root = folder / "root.key"
        former = (
            FileMaster.open(root) if root.exists() else None
        )  # until its keys are moved (`domicile secrets rewrap`)
        return KeyRing(folder, VaultMaster.open(self._vault, self.secrets.vault.key), former)

    @cached_property
    def _vault(self) -> "VaultClient | None":
        if self.secrets.provider != "vault":
            return None
        from gateway.secrets.vault import VaultClient  # with its HTTP client, only where there is a Vault

        return VaultClient(self.secrets.vault)

    @cached_property
    def secret_files(self) -> SecretFiles:
        """Sealed where the master key is elsewhere: beside a root key on the same disk a seal would keep nobody out."""
        return PLAIN if self.secrets.provider == "file" else SealedFiles(self.keys)

    def custody(self, log: AuditLog, keys: KeyProvider, signer: Signer, backup_days: int) -> Custody:
        return Custody(
            log,
            open_side=lambda: SideStore.open(self.side_store, keys),
            open_reader=lambda: open_reader(self.audit_log),
            keys=keys,
            signer=signer,
            backup_days=backup_days,
            tiles=self.audit_log.with_name(TILES),
        )

    def signer(self) -> "FileSigner | VaultSigner":
        make_private_folder(self.audit_log.parent)
        name = f"{trust_domain(self.cell)}/audit"
        if self._vault is not None and self.secrets.vault.signing_key is not None:
            from gateway.secrets.transit import VaultSigner

            vkey = self.audit_log.with_name("signer.vkey")
            return VaultSigner.open(self._vault, self.secrets.vault.signing_key, vkey, name=name)
        return FileSigner.open(self.audit_log.with_name("signer.key"), name=name)

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
        return PolicyRoom(self.inventory(database), self.catalogue(), self.audit_log, sinks=sinks_of(configured()))
