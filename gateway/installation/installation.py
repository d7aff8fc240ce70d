"""A data folder: its files, and how each is opened. One folder belongs to one cell.

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
<data>/secrets/manifests         signs manifests of answers; they are verified by ca/manifests.pem
<data>/catalogue.yaml            the installation's own places and operators, if it has any
<data>/files.made                names of the keys and databases above that were made, none of which is ever made again,
                                 and fingerprints of the keys
<data>/registers.json            parties, contracts and categories of people for evidence packs, if it has any
"""

import os
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from audit.errors import NoLog, SignerError, StoreError
from audit.files.new_file import make_private_folder
from audit.files.secret_file import create_secret, read_secret
from audit.keys.master import FileMaster, Master
from audit.keys.owner_keys import FileKeyProvider, KeyProvider, KeyRing
from audit.keys.signer import FileSigner, FollowingSigner, Signer, key_of
from audit.log.audit_log import AuditLog
from audit.private.audit_context import AuditContext
from audit.private.value_location import FILE, KEYS, open_values, values_of, wrapped_keys
from audit.storage.installation_identity import key_beside
from audit.storage.location import (
    exchange_attested_files,
    is_there,
    learn_successions,
    open_reader,
    open_store,
    record_of,
    tree_sizes,
)
from audit.storage.marker import NamedDatabase, StoreLocation, location_of, mark_created, read_marker, write_marker
from audit.storage.store import LeafStore, Reader
from audit.storage.tiles import TILES
from audit.tree.note import VerifierKey
from gateway.configuration.database_urls import CONTROL_SETTING, CONTROL_VARIABLE, DatabaseUrls, urls_of
from gateway.configuration.settings import Database as Databases
from gateway.configuration.settings import Secrets, Settings, SettingsError, load_settings
from gateway.configuration.sinks import sinks_of
from gateway.database.database import POOL_SIZE, Database
from gateway.database.ownership import StrangerDatabase, check_against_record, check_owner, claim, claim_keys
from gateway.identity.keys import KeyHasher
from gateway.installation.file_inventory import (
    DATABASES,
    NAME,
    FileInventory,
    FilesMadeOnce,
    describe_missing,
)
from gateway.installation.key_fingerprints import describe_changed, is_shared
from gateway.policies.compiled import PolicyCompiler
from gateway.policies.study import PolicyStudy
from gateway.secrets.external import external_keys
from gateway.store.change import OnEvent
from gateway.store.control.control import Control
from gateway.store.reports.inventory import Inventory
from gateway.upstream.credentials import TenantCredentials
from gateway.upstream.request_token import RequestSigner
from regions.catalogue.catalogue import Catalogue
from regions.identity.authority import CertificateAuthority
from regions.identity.encrypted_file import PLAIN, SealedFiles, SecretFiles
from regions.identity.identity import check_name, trust_domain

if TYPE_CHECKING:
    from audit.storage.postgres_watch import TreeSizes
    from gateway.marks.manifest import ManifestSigner
    from gateway.secrets.vault import VaultClient

DEFAULT_CELL = "local"


class InstallationError(Exception):
    """The folder is not there, or not what was asked for."""


INIT_HINT = "make one with: domicile init --data {data}, or name the right folder by --data or DOMICILE_DATA"


def configured() -> Settings:
    """Settings of the environment and of the file that DOMICILE_CONFIG names, for commands that are given no file.

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


def configured_databases() -> Databases:
    """Raises InstallationError."""
    return configured().database


@dataclass(frozen=True)
class Installation:
    """Paths of one cell's files on this machine, and the provider of the key to its secrets."""

    data: Path
    cell: str
    secrets: Secrets = field(default_factory=configured_secrets)
    databases: Databases = field(default_factory=configured_databases)

    @classmethod
    def create(cls, data: Path, cell: str | None = None, *, here: bool = True) -> "Installation":
        """The folder `data`, claimed for `cell` if it has no cell yet.

        It remembers where its databases are: on the servers whose URLs are configured, else, if `here`, in the folder.
        Raises InstallationError, IdentityError, SettingsError, StoreError; then nothing was made.
        """
        name = check_name(DEFAULT_CELL if cell is None else cell, "cell")
        urls = urls_of(configured_databases())
        try:
            kept = read_secret(data / "cell").decode().strip()
        except (FileNotFoundError, NotADirectoryError):
            kept = name
        if cell is not None and kept != cell:
            raise InstallationError(f"{data} belongs to cell {kept!r}, not {cell!r}; name another folder by --data")
        if data.is_dir() and not (data / "cell").exists() and (strange := next(_of_ours(data), None)):
            raise InstallationError(_no_cell(data, strange))
        made = cls(data, check_name(kept, "cell"))
        if data.is_dir():
            made.require_whole()
        places = [(named, url) for named, url in made.stores(urls) if _is_open(named, url, here=here)]
        make_private_folder(data)
        create_secret(data / "cell", f"{kept}\n".encode())
        for named, url in places:
            write_marker(named, location_of(named, url) or StoreLocation())
        return made

    @classmethod
    def open(
        cls,
        data: Path,
        secrets: Secrets | None = None,
        databases: Databases | None = None,
        *,
        accepting: Collection[str] = (),
    ) -> "Installation":
        """A folder made before. Raises InstallationError if there is none, if a key or database of it is missing, or if
        a key that is not one of `accepting` is not the one of before."""
        try:
            cell = check_name(read_secret(data / "cell").decode().strip(), "cell")
        except (FileNotFoundError, NotADirectoryError):
            if strange := next(_of_ours(data), None):
                raise InstallationError(_no_cell(data, strange)) from None
            raise InstallationError(f"{data} holds no installation; {INIT_HINT.format(data=data)}") from None
        given = {"secrets": secrets, "databases": databases}
        opened = cls(data, cell, **{name: one for name, one in given.items() if one is not None})  # type: ignore[arg-type]
        opened.require_whole(accepting)
        return opened

    def require_whole(self, accepting: Collection[str] = ()) -> None:
        """Raises InstallationError, naming the files, if a key or database that was made once is missing, or a key is
        not the one that was there before."""
        try:
            found = self.inventory_of_files.deviations()
        except OSError as error:
            raise InstallationError(str(error)) from error
        if missing := [name for name in found.missing if self._is_expected(name)]:
            raise InstallationError(describe_missing([str(self.data / name) for name in missing]))
        if changed := [name for name in found.changed if name not in accepting]:
            raise InstallationError(describe_changed([str(self.data / name) for name in changed]))

    def _is_expected(self, name: str) -> bool:
        """Whether the file is looked for here at all: keys may be in Vault meanwhile, databases on a server; of a
        database that its marker knows, the marker speaks."""
        if name in DATABASES:
            stores = [*self.stores(), (values_of(self.side_store), self.values_url())]
            named, url = next(one for one in stores if one[0].file == self.data / name)
            return url is None and not named.marker.exists()
        if name.endswith(".kek") and self.values_url() is not None:
            return False
        if self.secrets.provider == "file":
            return True
        signs_there = self.secrets.provider == "vault" and self.secrets.vault.signing_key is not None
        return not (name.startswith("audit/keys/root.key") or (name == "audit/signer.key" and signs_there))

    @property
    def inventory_of_files(self) -> FileInventory:
        return FileInventory(self.data)

    @cached_property
    def urls(self) -> DatabaseUrls:
        """Raises SettingsError."""
        return urls_of(self.databases)

    def stores(self, urls: DatabaseUrls | None = None) -> list[tuple[NamedDatabase, str | None]]:
        """Control database and record as messages name them, each with the URL that is configured for it."""
        urls = self.urls if urls is None else urls
        control = NamedDatabase(
            "control database",
            self.data / "control.db",
            self.data / "control.place",
            CONTROL_VARIABLE,
            CONTROL_SETTING,
        )
        return [(control, urls.control), (record_of(self.audit_log), urls.record)]

    def settle(self) -> list[tuple[NamedDatabase, StoreLocation]]:
        """Where control database and record are. Raises StoreError if the configured URLs disagree with what the folder
        remembers, or if none is configured; nothing is opened or made."""
        found = []
        for named, url in self.stores():
            place = location_of(named, url)
            if place is None:
                raise StoreError(
                    f"the place of the {named.what} of {self.data} is not known; set {named.variable}, or run:"
                    f" domicile init --data {self.data}, which keeps it in the folder"
                )
            found.append((named, place))
        return found

    def record_url(self) -> str | None:
        """None: the record is a file of the folder. Raises SettingsError."""
        return self.urls.record

    def values_url(self) -> str | None:
        """None: the value store and the keys above it are files of the folder. Raises SettingsError."""
        return self.urls.values

    def open_reader(self) -> Reader:
        """A snapshot of the record. Raises StoreError; NoLog if there is none yet."""
        return open_reader(self.audit_log, self.record_url)

    def tree_sizes(self) -> "TreeSizes | None":
        """Sizes of the record's trees, to be called at any rate; None where that costs no more than a reader."""
        return tree_sizes(self.record_url)

    def open_store(self, path: Path, node: str, boot: str) -> LeafStore:
        """What `AuditLog.open` takes where no event brings private values."""
        return open_store(path, node, boot, self.record_url)

    def learn_successions(self) -> bool:
        """Take over the successions of the record's key that other hosts wrote into it. Raises StoreError."""
        return learn_successions(self.audit_log, self.record_url)

    @property
    def owner(self) -> VerifierKey:
        """The key that verifies the record, with those its succession links to it: whose the databases have to be.

        Raises StoreError, SignerError.
        """
        return key_beside(self.audit_log) or key_of(self.signer())

    def database(self, *, pool_size: int = POOL_SIZE) -> Database:
        """The control database. Raises DatabaseUnavailable, StoreError, before anything is made or written, if it is of
        another installation or the folder remembers another one. Raises InstallationError if other hosts of the cell
        use other keys."""
        database = self.database_of_any_keys(pool_size=pool_size)
        try:
            self._check_keys(database)
        except BaseException:
            database.close()
            raise
        return database

    def database_of_any_keys(self, *, pool_size: int = POOL_SIZE) -> Database:
        """As `database`, for the command that changes what the keys are compared with."""
        (control, place), _ = self.settle()
        database = Database.open(self.data, url=self.urls.control, pool_size=pool_size, check=self._check_owner)
        try:
            claim(database, self.owner)
            mark_created(control, place)
        except BaseException:
            database.close()
            raise
        return database

    def _check_owner(self, database: Database) -> None:
        """Where the database's first key is not the folder's own, the record may know the successions that link them:
        those of other hosts, and those whose notes are missing in the folder."""
        try:
            check_owner(database, self.owner)
        except StrangerDatabase:
            with suppress(NoLog, StoreError):
                self.learn_successions()
            check_owner(database, self.owner)

    def _check_keys(self, database: Database) -> None:
        """Raises InstallationError if a key of this folder is not the one that other hosts of the cell have used."""
        try:
            known = self.inventory_of_files.fingerprints()
        except OSError as error:
            raise InstallationError(str(error)) from error
        shared = {name: one for name, one in known.items() if is_shared(name)}
        if differing := claim_keys(database, shared):
            raise InstallationError(describe_changed([str(self.data / name) for name in differing]))

    def check_of_one_time(self, database: Database) -> None:
        """Raises DatabaseUnavailable if only one of control database and record was restored from a backup."""
        sizes: dict[str, int] = {}
        if is_there(self.audit_log, self.record_url):
            with suppress(NoLog), closing(self.open_reader()) as reader:
                sizes = reader.sizes()
        check_against_record(database, sizes, self.owner)

    def models(self, settings: Settings | None = None) -> Path:
        """The folder that weights of deployments are found in. Raises InstallationError."""
        return (settings or configured()).fleet.models or self.data / "models"

    def hasher(self) -> KeyHasher:
        return KeyHasher.open(self.pepper, self.files_made_once)

    @property
    def pepper(self) -> Path:
        return self.data / "secrets" / "pepper"

    @property
    def redaction_secret(self) -> Path:
        return self.data / "secrets" / "redaction"

    @property
    def backend_keys(self) -> Path:
        return self.data / "secrets" / "backends"

    @property
    def own_catalogue(self) -> Path:
        return self.data / "catalogue.yaml"

    def catalogue(self) -> Catalogue:
        own = self.own_catalogue
        return Catalogue.load(own if own.exists() else None)

    def policies(self) -> PolicyCompiler:
        return PolicyCompiler.open(self.catalogue().country_sets(), self.redaction_secret, self.files_made_once)

    def authority(self) -> CertificateAuthority:
        return CertificateAuthority.open(self.authority_key.parent, self.cell, files=self.files_made_once)

    @property
    def authority_key(self) -> Path:
        return self.data / "ca" / "ca.key"

    def manifest_signer(self) -> "ManifestSigner":
        """Signs manifests of answers; its key and certificates are made on first use. Raises ManifestError,
        KeyProviderError, OSError."""
        from gateway.marks.manifest import ManifestSigner  # with a native library
        from gateway.marks.manifest_key import ManifestKey

        key = ManifestKey.open(self.manifest_secret, self.manifest_chain, self.files_made_once, self.cell)
        return ManifestSigner(key)

    @property
    def manifest_secret(self) -> Path:
        return self.data / "secrets" / "manifests"

    @property
    def manifest_chain(self) -> Path:
        return self.data / "ca" / "manifests.pem"

    def credentials(self) -> TenantCredentials:
        def find() -> CertificateAuthority | None:
            return self.authority() if self.authority_key.exists() else None

        return TenantCredentials(self.data / "gateway", self.cell, self.data / "ca" / "ca.pem", find(), find)

    def request_signer(self) -> RequestSigner:
        """Signs the tokens of calls to our own backends; its key is made on first use."""
        return RequestSigner.open(self.request_secret, self.files_made_once)

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
        return self.audit_log.with_name(FILE)

    @cached_property
    def keys(self) -> KeyRing:
        """Those above everything that is encrypted here. Raises KeyProviderError."""
        folder = self.audit_log.with_name(KEYS)
        wrapped, external = wrapped_keys(folder, self.values_url), external_keys(self.secrets.external)
        if self.secrets.provider == "file":
            return FileKeyProvider.open(folder, wrapped, external)
        make_private_folder(folder)
        root = folder / "root.key"
        former = (
            FileMaster.open(root) if root.exists() else None
        )  # until its keys are moved (`domicile secrets rewrap`)
        return KeyRing(wrapped, self._master(), former, external)

    def _master(self) -> Master:
        """Where it is not a file."""
        if self._vault is None:
            from gateway.secrets.pkcs11 import Pkcs11Client, Pkcs11Master

            return Pkcs11Master.open(Pkcs11Client(self.secrets.pkcs11))
        from gateway.secrets.transit import VaultMaster

        return VaultMaster.open(self._vault, self.secrets.vault.key)

    @cached_property
    def _vault(self) -> "VaultClient | None":
        if self.secrets.provider != "vault":
            return None
        from gateway.secrets.vault import VaultClient  # with its HTTP client, only where there is a Vault

        return VaultClient(self.secrets.vault)

    @cached_property
    def secret_files(self) -> SecretFiles:
        """Sealed where the master key is elsewhere: with the root key on the same disk a seal would protect nothing."""
        return PLAIN if self.secrets.provider == "file" else SealedFiles(self.keys)

    @property
    def files_made_once(self) -> SecretFiles:
        """`secret_files` for those that are made on first use: what existed once is not created again."""
        return FilesMadeOnce(self.secret_files, self.inventory_of_files)

    def context(self, log: AuditLog, keys: KeyProvider, signer: Signer, backup_days: int) -> AuditContext:
        return AuditContext(
            log,
            open_values=lambda: open_values(self.side_store, keys, self.values_url),
            open_reader=self.open_reader,
            keys=keys,
            signer=signer,
            backup_days=backup_days,
            tiles=self.audit_log.with_name(TILES),
            exchange=partial(exchange_attested_files, self.audit_log, self.record_url),
        )

    @property
    def log_name(self) -> str:
        """Name of the record: the key that signs it."""
        return f"{trust_domain(self.cell)}/audit"

    def signing_service(self) -> "tuple[VaultClient, str] | None":
        """Vault and the name of the key that signs the record there, if one is configured."""
        if self._vault is None or self.secrets.vault.signing_key is None:
            return None
        return self._vault, self.secrets.vault.signing_key

    def signer(self) -> FollowingSigner:
        """The key that signs the record, in its file or in Vault. Raises SignerError."""
        make_private_folder(self.audit_log.parent)
        if (service := self.signing_service()) is None:
            path = self.audit_log.with_name("signer.key")
            return FollowingSigner(path.with_suffix(".vkey"), [path], lambda: self._signer_in(path))
        from gateway.secrets.transit import VaultSigner

        vkey = self.audit_log.with_name("signer.vkey")
        return FollowingSigner(vkey, [], partial(VaultSigner.open, *service, vkey, name=self.log_name))

    def _signer_in(self, path: Path) -> FileSigner:
        """Raises SignerError, also if the key was there once."""
        try:
            # Looked for twice: a process that makes it now lists it once it is there.
            made_before = not path.exists() and self.inventory_of_files.lists(path) and not path.exists()
        except OSError as error:
            raise SignerError(str(error)) from error
        if made_before and not path.with_suffix(".vkey").exists():
            raise SignerError(describe_missing([str(path)]))
        return FileSigner.open(path, name=self.log_name)

    def control(self, database: Database, *, actor: str, on_event: OnEvent) -> Control:
        return Control(
            database,
            cell=self.cell,
            hasher=self.hasher(),
            actor=actor,
            check_policy=self.policies().check,
            on_event=on_event,
            approval_wait=timedelta(hours=configured().approvals.wait_hours),
        )

    def inventory(self, database: Database) -> Inventory:
        return Inventory(database)

    def policy_study(self, database: Database) -> PolicyStudy:
        return PolicyStudy(self.inventory(database), self.catalogue(), self.open_reader, sinks=sinks_of(configured()))


def _is_open(named: NamedDatabase, url: str | None, *, here: bool) -> bool:
    """Whether the folder does not remember yet where the database is, and it is known now.

    Raises StoreError if it remembers another place than `url` names. A folder may be completed without the URL.
    """
    if read_marker(named) is not None and url is None:
        return False
    place = location_of(named, url)
    return read_marker(named) is None and (place is not None or here)


def _no_cell(data: Path, strange: str) -> str:
    return (
        f"{data} has no file 'cell', but holds {strange}: it is part of a data folder; put the key set back"
        f" with: domicile init --keys KEY_SET --data {data}"
    )


def is_part_of_one(data: Path) -> bool:
    """Whether `data` holds what only the folder of a gateway does, and not a log alone."""
    return any((data / name).exists() for name in ("cell", "control.db", "control.place", "secrets", "ca", NAME))


def _of_ours(data: Path) -> Iterator[str]:
    """Names of what only a data folder holds, if `data` is one of which the file `cell` is gone."""
    for name in ("control.db", "audit/log.db", "audit/signer.key", "secrets/pepper"):
        if (data / name).exists():
            yield name
