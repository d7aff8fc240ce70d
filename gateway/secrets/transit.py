"""The master key and the log's signing key in Vault's transit engine: neither ever leaves it.

The master is a derived key (aes256-gcm96), so that what was wrapped in one context opens in no other; Vault keeps its
versions. Signatures are Ed25519 of one version of a second key, the one whose public half is in ``signer.vkey``.
Another version signs once `domicile audit rotate` has recorded a succession to it (`gateway.installation.signing_key`).
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from audit.errors import KeyLost, KeyProviderError, SignerError
from audit.files.new_file import PUBLIC, replace_file
from audit.files.secret_file import shred_secret
from audit.keys.master import MasterState, origin_of
from audit.keys.succession import notes_in, successors
from audit.tree.note import VerifierKey
from gateway.secrets.vault import VaultClient, VaultError, VaultMissing, VaultRefused

MASTER_TYPE = "aes256-gcm96"
SIGNING_TYPE = "ed25519"

# Vault's errors for a ciphertext that none of its keys will ever open; any other error may pass.
_LOST = (
    "cipher: message authentication failed",
    "ciphertext or signature version is disallowed by policy (too old)",
    "invalid ciphertext: version is too new",
    "encryption key not found",
)


class VaultMaster:
    """An `audit.keys.master.Master`. `name` is the key's in the transit engine."""

    provider = "vault"

    def __init__(self, client: VaultClient, name: str) -> None:
        self._client = client
        self._name = name

    @classmethod
    def open(cls, client: VaultClient, name: str, *, make: bool = True) -> "VaultMaster":
        """With the key `name`, made if there is none, the token may, and `make`. Raises KeyProviderError if it is
        unsuited."""
        try:
            found = client.get(f"keys/{name}")
        except VaultMissing:
            if not make:
                raise
            client.post(f"keys/{name}", {"type": MASTER_TYPE, "derived": True})
            found = client.get(f"keys/{name}")
        if found.get("type") != MASTER_TYPE or not found.get("derived"):
            raise KeyProviderError(
                f"the key {name} in Vault must be of type {MASTER_TYPE} with derived=true"
                "; make such a key, and name it by secrets.vault.key"
            )
        if found.get("exportable") or found.get("allow_plaintext_backup"):
            raise KeyProviderError(
                f"the key {name} in Vault may leave it (exportable, allow_plaintext_backup)"
                "; make one that may not, and name it by secrets.vault.key"
            )
        return cls(client, name)

    def wrap(self, context: str, key: bytes) -> bytes:
        body = {"plaintext": _b64(key), "context": _b64(context.encode())}
        return self._ciphertext(self._client.post(f"encrypt/{self._name}", body))

    def unwrap(self, context: str, wrapped: bytes) -> bytes:
        data = self._about(context, wrapped, "decrypt")
        try:
            return base64.b64decode(data["plaintext"], validate=True)
        except (KeyError, TypeError, binascii.Error) as error:
            raise KeyProviderError("Vault's answer holds no plaintext; check secrets.vault.address") from error

    def rewrap(self, context: str, wrapped: bytes) -> bytes:
        return self._ciphertext(self._about(context, wrapped, "rewrap"))

    def state(self) -> MasterState:
        place = f"{self._client.address}/v1/{self._client.mount}/keys/{self._name}"
        return MasterState(self.provider, place, _versions(self._read()))

    def rotate(self) -> int:
        self._client.post(f"keys/{self._name}/rotate", {}, repeatable=False)
        return self.state().newest

    def retire(self, below: int) -> None:
        if below > self.state().newest:
            raise KeyProviderError(
                f"there is no version {below} of the key that could stay; name a version up to the newest"
            )
        least = {"min_decryption_version": below, "min_encryption_version": below}
        self._client.post(f"keys/{self._name}/config", least)  # this alone could be taken back
        self._client.post(f"keys/{self._name}/trim", {"min_available_version": below})

    def _read(self) -> dict[str, Any]:
        return self._client.get(f"keys/{self._name}")

    def _about(self, context: str, wrapped: bytes, verb: str) -> dict[str, Any]:
        provider, _ = origin_of(wrapped)
        if provider != self.provider:
            raise KeyProviderError(f"a key was wrapped by {provider}, not by Vault; set secrets.provider to {provider}")
        body = {"ciphertext": wrapped.decode("ascii"), "context": _b64(context.encode())}
        try:
            return self._client.post(f"{verb}/{self._name}", body)
        except VaultRefused as error:
            if any(message in error.errors for message in _LOST):
                raise KeyLost(
                    f"a wrapped key does not open in Vault: {error.errors[0]}; restore the key in Vault from a backup"
                ) from error
            raise

    def _ciphertext(self, data: Mapping[str, Any]) -> bytes:
        found = str(data.get("ciphertext", "")).encode("ascii", "replace")
        try:
            provider, _ = origin_of(found)
        except KeyLost:
            provider = ""
        if provider != self.provider:
            raise KeyProviderError("Vault's answer holds no ciphertext; check secrets.vault.address")
        return found


class VaultSigner:
    """An `audit.keys.signer.LogSigner` of one version of a key that stays in Vault."""

    def __init__(self, client: VaultClient, key: str, version: int, verifier: VerifierKey) -> None:
        self._client = client
        self._key = key
        self._version = version
        self._verifier = verifier
        self.successions: list[str] = []

    @classmethod
    def open(cls, client: VaultClient, key: str, vkey: Path, *, name: str) -> "VaultSigner":
        """With the version of `key` whose public half is in `vkey`; both are made where there are none.

        Where a succession next to `vkey` leads to another version, that one signs; `vkey` is brought up to date, and
        the file of a key that signed before is destroyed.
        Raises SignerError if the log at `vkey` is signed by another key: it would no longer verify.
        """
        versions = versions_of(client, key)
        try:
            notes = notes_in(vkey.parent)
            if not vkey.exists():
                replace_file(vkey, f"{VerifierKey(name, _first(versions, key, name, notes))}\n".encode("ascii"), PUBLIC)
            known = VerifierKey.parse(vkey.read_text(encoding="ascii"))
            newest = [known.public_key, *successors(known.public_key, known.name, notes)][-1]
            signer = cls(client, key, versions.get(newest, 0), VerifierKey(known.name, newest))
            signer.successions = notes
            if newest in versions and newest != known.public_key:
                if (former := vkey.with_suffix(".key")).exists():
                    shred_secret(former)
                replace_file(vkey, f"{signer.verifier_key}\n".encode("ascii"), PUBLIC)
        except (OSError, ValueError) as error:
            raise SignerError(
                f"the signing key {key} in Vault cannot be used: {error}"
                "; check secrets.vault.signing_key and the token's policy"
            ) from error
        if newest in versions:
            return signer
        raise SignerError(
            f"{vkey.name} is not of the key {key} in Vault: the log was signed by another one; let this key take over"
            " with: domicile audit rotate (while the other is there), or take secrets.vault.signing_key out of the"
            " configuration"
        )

    @classmethod
    def of_version(cls, client: VaultClient, key: str, public_key: bytes, *, name: str) -> "VaultSigner":
        """Signer of the version with this public key, whatever signs the log. Raises SignerError."""
        return cls(client, key, versions_of(client, key)[public_key], VerifierKey(name, public_key))

    @property
    def name(self) -> str:
        return self._verifier.name

    @property
    def public_key(self) -> bytes:
        return self._verifier.public_key

    @property
    def verifier_key(self) -> VerifierKey:
        return self._verifier

    def sign(self, message: bytes) -> bytes:
        body = {"input": _b64(message), "key_version": self._version}
        try:
            signature = str(self._client.post(f"sign/{self._key}", body)["signature"])
            return base64.b64decode(signature.removeprefix(f"vault:v{self._version}:"), validate=True)
        except (VaultError, KeyError, binascii.Error) as error:
            raise SignerError(
                f"Vault did not sign: {error}; check secrets.vault.signing_key and the token's policy"
            ) from error


def versions_of(client: VaultClient, key: str) -> dict[bytes, int]:
    """Public half and number of each version of the Ed25519 key `key`, the newest last.

    The key is made if there is none and the token may. Raises SignerError.
    """
    try:
        try:
            found = client.get(f"keys/{key}")
        except VaultMissing:
            client.post(f"keys/{key}", {"type": SIGNING_TYPE})
            found = client.get(f"keys/{key}")
        if found.get("type") != SIGNING_TYPE:
            raise SignerError(
                f"the key {key} in Vault must be of type {SIGNING_TYPE}; name such a key by secrets.vault.signing_key"
            )
        return {_public_key(found["keys"][str(version)]): version for version in _versions(found)}
    except (VaultError, KeyProviderError, ValueError, KeyError, TypeError) as error:
        raise SignerError(
            f"the signing key {key} in Vault cannot be used: {error}"
            "; check secrets.vault.signing_key and the token's policy"
        ) from error


def _first(versions: Mapping[bytes, int], key: str, name: str, notes: Sequence[str]) -> bytes:
    """The signing version where no verifier key names it: the one that the successions lead to, else the only one."""
    ends = {end for one in versions for end in successors(one, name, notes)[-1:]}
    if not ends and len(versions) == 1:
        return next(iter(versions))
    if len(ends) == 1 and (end := next(iter(ends))) in versions:
        return end
    raise SignerError(
        f"the key {key} in Vault has {len(versions)} versions and no succession names the one that signs; take the"
        " key set of this installation over with: domicile init --keys, or, for a new installation, name a key of one"
        " version"
    )


def _versions(found: Mapping[str, Any]) -> tuple[int, ...]:
    try:
        return tuple(sorted(map(int, found["keys"])))
    except (KeyError, TypeError, ValueError) as error:
        raise KeyProviderError("Vault's answer names no versions of the key; check secrets.vault.address") from error


def _public_key(version: Mapping[str, Any]) -> bytes:
    return base64.b64decode(version["public_key"], validate=True)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
