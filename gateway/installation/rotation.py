"""Replacing the keys of an installation, in steps that may each be repeated after a crash.

    rotate ─> a new version of the master key wraps from now on
    rewrap ─> every key is wrapped under it; what lay in clear is sealed, if the master is elsewhere
    retire ─> the versions below it are destroyed, once nothing is wrapped under them

`renew` replaces one tenant's own key, and every data key is wrapped under the new one. `accept` takes over a key that
was replaced in its file on purpose, such as an authority of the organisation: until then every command and gateway
refuses it by its fingerprint (`gateway.installation.key_fingerprints`).
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from audit.errors import KeyProviderError
from audit.events.anchor import KeyAccepted, KeyGiven, KeyringChanged
from audit.events.base import SYSTEM_TENANT
from audit.keys.master import FileMaster, MasterState
from audit.keys.owner_keys import BUILT_IN
from audit.private.renewal import renew as renew_data_keys
from audit.private.value_location import open_values
from gateway.database.ownership import accept_key
from gateway.identity.keys import pepper_files
from gateway.installation.installation import Installation, InstallationError
from gateway.installation.key_fingerprints import fingerprint_of, has_fingerprint, is_shared
from gateway.store.lookup import tenant as lookup_tenant
from gateway.store.marks import AnswerSalts, MarkKeys
from regions.identity.encrypted_file import SealedFiles, is_sealed

Record = Callable[[KeyringChanged], object]
"""Makes an event durable, or raises: then nothing is changed."""
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Status:
    """`waiting` counts keys that are not wrapped under the newest version of the master, by what they are under;
    `renewing` names owners whose key is being replaced; `clear` are files of secrets that are unsealed, though the
    master key is elsewhere; `external` the tenants whose own key is above theirs, with its name."""

    master: MasterState
    owners: int
    destroyed: int
    waiting: dict[str, int]
    renewing: tuple[str, ...]
    clear: tuple[str, ...]
    external: dict[str, str]


def status(installation: Installation) -> Status:
    """Raises KeyProviderError."""
    ring, master = installation.keys, installation.keys.state()
    waiting: dict[str, int] = {}
    destroyed, renewing, external = 0, [], {}
    owners = ring.owners()
    for owner in owners:
        state = ring.state_of(owner)
        destroyed += not state.wrapped_under
        if len(state.wrapped_under) > 1:
            renewing.append(owner)
        for provider, version in state.wrapped_under.values():
            if provider not in BUILT_IN:
                external[owner] = provider
                continue
            if (provider, version) != (master.provider, master.newest):
                under = f"{provider}:v{version}"
                waiting[under] = waiting.get(under, 0) + 1
    clear = tuple(map(str, unencrypted_files(installation)))
    return Status(master, len(owners), destroyed, waiting, tuple(renewing), clear, external)


def rotate(installation: Installation, record: Record, actor: str) -> int:
    """A new version of the master; its number. While keys still wait for the newest one, that one's: first rewrap."""
    now = status(installation)
    if now.waiting:
        return now.master.newest
    return installation.keys.rotate_master(
        now.master.newest,
        lambda version: record(_changed("admin.keyring.rotated", actor, now.master.provider, version)),
    )


def rewrap(installation: Installation, record: Record, actor: str, progress: Progress = lambda count: None) -> int:
    """Wrap every owner's key under the newest master, and seal plain files; returns how many were changed."""
    ring, changed = installation.keys, 0
    failed: dict[str, KeyProviderError] = {}
    for owner in ring.owners():
        try:
            changed += ring.rewrap(owner)
        except KeyProviderError as error:  # a tenant's own key is unavailable: the others are not to wait for it
            if ring.external_of(owner) is None:
                raise
            failed[owner] = error
        progress(1)
    files = installation.secret_files
    if isinstance(files, SealedFiles):
        changed += sum(files.seal(path) for path in secret_files_of(installation))
    if changed:
        master = ring.state()
        record(_changed("admin.keyring.rewrapped", actor, master.provider, master.newest, changed))
    if failed:
        raise KeyProviderError(
            f"{changed} keys were rewrapped; not that of {', '.join(failed)}: {next(iter(failed.values()))}"
            "; run domicile secrets rewrap again when their own keys can be reached"
        )
    return changed


def retire(installation: Installation, record: Record, actor: str) -> int:
    """Destroy every version of the master but the newest; how many. Raises KeyProviderError while one is needed."""
    now = status(installation)
    if now.waiting:
        raise KeyProviderError(
            f"{sum(now.waiting.values())} keys are still wrapped under {', '.join(sorted(now.waiting))}; run "
            "domicile secrets rewrap first"
        )
    former = installation.keys.former_state()
    old = len(now.master.versions) - 1 + (0 if former is None else len(former.versions))
    if old:
        record(_changed("admin.keyring.retired", actor, now.master.provider, now.master.newest, old))
        with installation.inventory_of_files.removing(_root_keys_below(installation, now.master)):
            installation.keys.retire_master(now.master.newest)
    return old


def _root_keys_below(installation: Installation, master: MasterState) -> list[str]:
    """Names in the data folder of the versions of the root key under the master's newest; all where it is elsewhere."""
    folder, stays = installation.audit_log.with_name("keys"), ""
    if master.provider == FileMaster.provider:
        stays = "root.key" if master.newest == 1 else f"root.key.{master.newest}"
    return [str(file.relative_to(installation.data)) for file in folder.glob("root.key*") if file.name != stays]


def renew(
    installation: Installation, owner: str, record: Record, actor: str, progress: Progress = lambda count: None
) -> tuple[int, int]:
    """Replace the key of a tenant, or of the installation (`_system`); its generation, and how many keys it now wraps.

    Raises KeyLost if it was destroyed, KeyProviderError if there is none, StoreError.
    """
    ring, sealed = installation.keys, 0
    generation = ring.begin_renewal(owner)
    files = installation.secret_files
    if owner == SYSTEM_TENANT and isinstance(files, SealedFiles):
        for path in secret_files_of(installation):
            sealed += files.seal(path, generation=generation)
            progress(1)
    if owner != SYSTEM_TENANT:
        with closing(installation.database()) as database:
            sealed += MarkKeys(database, ring).rewrap(owner) + AnswerSalts(database, ring).rewrap(owner)
    with closing(open_values(installation.side_store, ring, installation.values_url)) as side:
        generation, wrapped = renew_data_keys(side, ring, owner, progress)
    record(_changed("admin.keyring.renewed", actor, ring.master.provider, generation, sealed + wrapped, owner))
    return generation, sealed + wrapped


def give(
    installation: Installation,
    tenant: str,
    name: str | None,
    record: Callable[[KeyGiven | KeyringChanged], object],
    actor: str,
    progress: Progress = lambda count: None,
) -> tuple[int, int]:
    """Put the key of a tenant under its own key `name` (``secrets.external``), or under the master again (None), and
    replace it, so that what was wrapped before opens nothing; its generation, and how many keys it now wraps.

    May be repeated after a crash. Raises KeyLost if it was destroyed, KeyProviderError, NotFound, StoreError.
    """
    ring = installation.keys
    if name is not None:
        ring.external.named(name).state()  # before anything is on record
    with closing(installation.database()) as database:
        with database.read() as session:
            lookup_tenant(session, tenant)
        event = KeyGiven(tenant=tenant, actor=actor, provider=ring.master.provider if name is None else name)
        record(event)
        ring.give_to(tenant, name)
    return renew(installation, tenant, record, actor, progress)


def accept(installation: Installation, name: str, record: Callable[[KeyAccepted], object], actor: str) -> str:
    """From now on the content of the file `name` of the data folder is that key of the installation; its fingerprint.

    `installation` was opened with `accepting` it. Raises InstallationError if it is no such key or not there,
    KeyProviderError, OSError, AuditError.
    """
    file = installation.data / name
    if not has_fingerprint(name):
        raise InstallationError(
            f"{name!r} is not a key that can be accepted; name its path in the data folder, as secrets/redaction or"
            " ca/ca.key"
        )
    if not file.exists():
        raise InstallationError(f"there is no {file}; put the new key there first")
    content = installation.secret_files.read(file)
    fingerprint = fingerprint_of(name, content)
    if fingerprint is None:
        raise InstallationError(f"{file} is sealed for another installation; put the key itself there")
    with closing(installation.database_of_any_keys()) as database:
        record(KeyAccepted(actor=actor, key=name.replace("/", "."), fingerprint=fingerprint))
        if is_shared(name):
            accept_key(database, name, fingerprint)
        installation.inventory_of_files.accept(name, content)
    return fingerprint


def secret_files_of(installation: Installation) -> list[Path]:
    """Those there are, of those that can be sealed."""
    candidates = [
        *pepper_files(installation.pepper).values(),
        installation.redaction_secret,
        installation.authority_key,
        installation.request_secret,
        installation.manifest_secret,
    ]
    return [path for path in candidates if path.exists()]


def _changed(
    kind: Literal["admin.keyring.rotated", "admin.keyring.rewrapped", "admin.keyring.retired", "admin.keyring.renewed"],
    actor: str,
    provider: str,
    version: int,
    keys: int = 0,
    tenant: str = SYSTEM_TENANT,
) -> KeyringChanged:
    return KeyringChanged(type=kind, tenant=tenant, actor=actor, provider=provider, version=version, keys=keys)


def unencrypted_files(installation: Installation) -> list[Path]:
    """Files of secrets that are not sealed though they could be, as seen from the data folder."""
    if not isinstance(installation.secret_files, SealedFiles):
        return []
    return [path.relative_to(installation.data) for path in secret_files_of(installation) if not is_sealed(path)]
