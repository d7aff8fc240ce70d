"""Replacement of the key that signs the record, where the old key or the new one is in Vault.

from    to      the new key
file    Vault   the newest version of secrets.vault.signing_key; the file is destroyed
Vault   Vault   the newest version; one is made if the newest signs already
Vault   file    a new key in audit/signer.key; afterwards secrets.vault.signing_key is taken out of the configuration
file    file    a new key in audit/signer.key
"""

from collections.abc import Callable
from pathlib import Path

from audit.errors import SignerError
from audit.files.secret_file import shred_secret
from audit.keys.signer import FileSigner, write_vkey
from audit.witness.rotation import Replacement, in_file
from gateway.installation.installation import Installation
from gateway.secrets.transit import VaultSigner, versions_of
from gateway.secrets.vault import VaultClient, VaultError

FILE, VAULT = "file", "vault"


def replacement(installation: Installation, to: str | None) -> Replacement:
    """`to` is where the new key is kept; None: in Vault if a signing key is configured there. Raises SignerError."""
    path = installation.audit_log.with_name("signer.key")
    service = installation.signing_service()
    if to is None:
        to = FILE if service is None else VAULT
    if to == VAULT and service is None:
        raise SignerError("no signing key in Vault is configured; set secrets.provider and secrets.vault.signing_key")
    if path.exists():
        old = FileSigner.open(path)
        return in_file(path) if service is None or to == FILE else _from_file(installation, old, path, *service)
    if service is None:
        raise SignerError(
            "the signing key is not in audit/signer.key and none in Vault is configured; set secrets.vault.signing_key,"
            " or put the key back with: domicile init --keys"
        )
    client, key = service
    signing = VaultSigner.open(client, key, path.with_suffix(".vkey"), name=installation.log_name)
    return in_file(path, signing) if to == FILE else _next_version(signing, path, client, key)


def _from_file(installation: Installation, old: FileSigner, path: Path, client: VaultClient, key: str) -> Replacement:
    newest = list(versions_of(client, key))[-1]
    new = VaultSigner.of_version(client, key, newest, name=old.name)

    def put_in_place() -> None:
        with installation.inventory_of_files.removing([str(path.relative_to(installation.data))]):
            shred_secret(path)  # first: without it the succession alone names the signer
        write_vkey(path, new.verifier_key)

    return Replacement(old, new, put_in_place)


def _next_version(old: VaultSigner, path: Path, client: VaultClient, key: str) -> Replacement:
    if (newest := list(versions_of(client, key))[-1]) == old.public_key:
        try:
            client.post(f"keys/{key}/rotate", {}, repeatable=False)
        except VaultError as error:
            raise SignerError(
                f"the newest version of the key {key} in Vault signs already and no other could be made: {error}; make"
                f" one with: vault write -f transit/keys/{key}/rotate"
            ) from error
        newest = list(versions_of(client, key))[-1]
    new = VaultSigner.of_version(client, key, newest, name=old.name)
    return Replacement(old, new, _writer(path, new))


def _writer(path: Path, new: VaultSigner) -> Callable[[], None]:
    return lambda: write_vkey(path, new.verifier_key)
