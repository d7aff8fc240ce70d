"""Which keys and databases a data folder has had: one that is missing is an error and is never created again.

A key that is made again under the same name opens nothing of what the first one closed: hashes of API keys, wrapped
keys, certificates of backends. So their names are listed in a file of the folder once they exist, and are taken off
the list only before they are destroyed on purpose. The list holds names, no secrets.
"""

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from audit.errors import KeyProviderError
from audit.files.folder_lock import lock_folder
from audit.files.secret_file import read_secret, write_secret
from regions.identity.encrypted_file import SecretFiles

NAME = "files.made"
KEYS = (
    "audit/signer.key",
    "audit/keys/root.key*",
    "audit/keys/_system.kek",
    "secrets/pepper*",
    "secrets/redaction",
    "secrets/requests",
    "ca/ca.key",
)
"""Globs of what would be made on first use. A tenant's key is not among them: its file stays when it is destroyed, and
the side store knows who has had one."""
DATABASES = ("control.db", "audit/log.db", "audit/side.db")

_KEY = re.compile(r"[a-z_]+(?:\.key)?(?:\.kek)?(?:\.[0-9]+)?")
"""Of a file name; neither drafts nor peppers that are only staged."""


class FileInventory:
    """Of the data folder `data`. Several processes may use it at once."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._file = data / NAME

    def missing(self) -> list[str]:
        """Listed and not there, sorted. What is there and not listed yet is listed; on a read-only folder it is not.

        Raises OSError if the list cannot be read.
        """
        with lock_folder(self._data):
            listed, there = self._listed(), self._present()
            if not there <= listed:
                with suppress(OSError):
                    self._write(listed | there)
        return sorted(listed - there)

    def lists(self, path: Path) -> bool:
        """Whether the file `path` was there once. Raises OSError."""
        return path.is_relative_to(self._data) and str(path.relative_to(self._data)) in self._listed()

    @contextmanager
    def removing(self, names: Collection[str]) -> Iterator[None]:
        """The files `names` are destroyed on purpose in this block. Those that are left by its failure are listed again
        by the next look."""
        self._drop(names)
        yield
        self._drop(names)  # another process may have listed them again in between

    def _drop(self, names: Collection[str]) -> None:
        with lock_folder(self._data):
            listed = self._listed()
            if left := listed & set(names):
                self._write(listed - left)

    def _present(self) -> set[str]:
        keys = (file for pattern in KEYS for file in self._data.glob(pattern) if _KEY.fullmatch(file.name))
        files = (*keys, *(self._data / name for name in DATABASES))
        return {str(file.relative_to(self._data)) for file in files if file.exists() or file.is_symlink()}

    def _listed(self) -> set[str]:
        try:
            listed = json.loads(read_secret(self._file))
        except FileNotFoundError:
            return set()
        except ValueError as error:
            raise OSError(f"{self._file} is damaged; remove it, and it is written again: {error}") from error
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise OSError(f"{self._file} is damaged; remove it, and it is written again")
        return set(listed)

    def _write(self, names: Collection[str]) -> None:
        write_secret(self._file, json.dumps(sorted(names), indent=1).encode() + b"\n")


class FilesMadeOnce:
    """`SecretFiles` that creates no file that the inventory lists."""

    def __init__(self, files: SecretFiles, inventory: FileInventory) -> None:
        self._files = files
        self._inventory = inventory

    def read(self, path: Path) -> bytes:
        return self._files.read(path)

    def create(self, path: Path, content: bytes) -> bytes:
        if not path.exists():
            try:
                made_before = self._inventory.lists(path)
            except OSError as error:
                raise KeyProviderError(str(error)) from error
            if made_before:
                raise KeyProviderError(describe_missing([str(path)]))
        return self._files.create(path, content)


def describe_missing(paths: Collection[str]) -> str:
    """What is missing, and where it can be had from."""
    databases = [path for path in paths if path.endswith(".db")]
    keys = [path for path in paths if not path.endswith(".db")]
    said = []
    if keys:
        verb = "is" if len(keys) == 1 else "are"
        said.append(
            f"{', '.join(keys)} {verb} missing, and a new key would not open what the old one closed; put the key set"
            " back with: domicile init --keys KEY_SET"
        )
    if any(key.endswith(("signer.key", "root.key")) for key in keys):
        said[-1] += ", or, where it is in Vault, set secrets.provider and secrets.vault.signing_key"
    if databases:
        verb = "is" if len(databases) == 1 else "are"
        said.append(f"{', '.join(databases)} {verb} missing; put it back from a backup with: domicile backup restore")
    return "; ".join(said)
