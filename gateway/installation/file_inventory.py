"""Which keys and databases a data folder has had: one that is missing or differs is an error; none is created again.

A key that is made again under the same name opens nothing of what the first one closed: hashes of API keys, wrapped
keys, certificates of backends. So their names are listed in a file of the folder once they exist, and are taken off
the list only before they are destroyed on purpose. Next to the name of a key is its fingerprint
(`gateway.installation.key_fingerprints`). The list holds no secrets.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from audit.errors import KeyProviderError
from audit.files.folder_lock import lock_folder
from audit.files.secret_file import read_secret, write_secret
from gateway.installation.key_fingerprints import describe_changed, fingerprint_of, has_fingerprint
from regions.identity.encrypted_file import SecretFiles

NAME = "files.made"
KEYS = (
    "audit/signer.key",
    "audit/keys/root.key*",
    "audit/keys/_system.kek",
    "secrets/pepper*",
    "secrets/redaction",
    "secrets/requests",
    "secrets/manifests",
    "ca/ca.key",
)
"""Globs of what would be made on first use. A tenant's key is not among them: its file stays when it is destroyed, and
the value store knows who has had one."""
DATABASES = ("control.db", "audit/log.db", "audit/side.db")

_KEY = re.compile(r"[a-z_]+(?:\.key)?(?:\.kek)?(?:\.[0-9]+)?")
"""Pattern of a file name; neither drafts nor peppers that are only staged."""


@dataclass(frozen=True, slots=True)
class Deviations:
    """Names of listed files that are missing, and of keys that are not those of before; both sorted."""

    missing: list[str]
    changed: list[str]


class FileInventory:
    """Files of the data folder `data`. Several processes may use it at once."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._file = data / NAME

    def deviations(self) -> Deviations:
        """What differs from the list. What is there and not listed yet is listed; on a read-only folder it is not.

        Raises OSError if the list cannot be read.
        """
        with lock_folder(self._data):
            listed, there = self._listed(), self._present()
            changed = _differing(listed, there)
            new = {name: one for name, one in there.items() if name not in listed or (one and not listed[name])}
            if new and not changed:
                with suppress(OSError):
                    self._write(listed | new)
        return Deviations(sorted(listed.keys() - there.keys()), changed)

    def differing(self, contents: Mapping[str, bytes]) -> list[str]:
        """Those of `contents`, by name, that are not the keys that the folder has had. Raises OSError."""
        return _differing(self._listed(), {name: _fingerprint(name, content) for name, content in contents.items()})

    def lists(self, path: Path) -> bool:
        """Whether the file `path` was there once. Raises OSError."""
        return path.is_relative_to(self._data) and str(path.relative_to(self._data)) in self._listed()

    def is_of_before(self, path: Path, content: bytes) -> bool:
        """Whether `content` may be that of the key `path`: the same as before, or nothing is known. Raises OSError."""
        return not (path.is_relative_to(self._data) and self.differing({str(path.relative_to(self._data)): content}))

    def fingerprints(self) -> dict[str, str]:
        """Those that are known, by the name of the key. Raises OSError."""
        return {name: found for name, found in self._listed().items() if found is not None}

    def accept(self, name: str, content: bytes) -> str | None:
        """From now on the key `name` is `content`, which was replaced on purpose; its fingerprint. Raises OSError."""
        with lock_folder(self._data):
            found = _fingerprint(name, content)
            self._write(self._listed() | {name: found})
        return found

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
            if listed.keys() & set(names):
                self._write({name: found for name, found in listed.items() if name not in names})

    def _present(self) -> dict[str, str | None]:
        keys = (file for pattern in KEYS for file in self._data.glob(pattern) if _KEY.fullmatch(file.name))
        files = (*keys, *(self._data / name for name in DATABASES))
        return {
            (name := str(file.relative_to(self._data))): self._fingerprint_in(name, file)
            for file in files
            if file.exists() or file.is_symlink()
        }

    def _fingerprint_in(self, name: str, file: Path) -> str | None:
        if not has_fingerprint(name):
            return None
        try:
            return fingerprint_of(name, read_secret(file))
        except OSError:  # reported where the key is used
            return None

    def _listed(self) -> dict[str, str | None]:
        """Fingerprints by name; earlier versions listed names alone."""
        try:
            listed = json.loads(read_secret(self._file))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise OSError(f"{self._file} is damaged; remove it, and it is written again: {error}") from error
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
            listed = dict.fromkeys(listed)
        # A folder has always something to list: a list of nothing would let every key be another one.
        if (
            not isinstance(listed, dict)
            or not listed
            or not all(isinstance(one, str | None) for one in listed.values())
        ):
            raise OSError(f"{self._file} is damaged; remove it, and it is written again")
        return listed

    def _write(self, listed: Mapping[str, str | None]) -> None:
        write_secret(self._file, json.dumps(listed, indent=1, sort_keys=True).encode() + b"\n")


def _differing(listed: Mapping[str, str | None], found: Mapping[str, str | None]) -> list[str]:
    return sorted(name for name, one in found.items() if one and (known := listed.get(name)) and one != known)


def _fingerprint(name: str, content: bytes) -> str | None:
    return fingerprint_of(name, content) if has_fingerprint(name) else None


class FilesMadeOnce:
    """`SecretFiles` that creates no file that the inventory lists, and gives no key that is not that of before."""

    def __init__(self, files: SecretFiles, inventory: FileInventory) -> None:
        self._files = files
        self._inventory = inventory

    def read(self, path: Path) -> bytes:
        return self._checked(path, self._files.read(path))

    def create(self, path: Path, content: bytes) -> bytes:
        if not path.exists():
            try:
                made_before = self._inventory.lists(path)
            except OSError as error:
                raise KeyProviderError(str(error)) from error
            if made_before and not path.exists():  # a process that makes it now lists it once it is there
                raise KeyProviderError(describe_missing([str(path)]))
        return self._checked(path, self._files.create(path, content))

    def _checked(self, path: Path, content: bytes) -> bytes:
        try:
            of_before = self._inventory.is_of_before(path, content)
        except OSError as error:
            raise KeyProviderError(str(error)) from error
        if not of_before:
            raise KeyProviderError(describe_changed([str(path)]))
        return content


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
