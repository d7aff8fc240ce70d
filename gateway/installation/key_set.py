"""The secrets that every gateway of a cell has to hold, as files of one flat folder.

The shape in which secrets are handed to a process: a mounted Kubernetes Secret, a systemd credential. A
path in the data folder becomes a name by writing ``__`` for ``/``, since such names may hold no slash.

Certificates of tenants and values under retention are not among them: those are made again, these are the cell's data.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from audit.files.new_file import make_private_folder
from audit.files.secret_file import create_secret, read_secret
from audit.files.untrusted_file import UnsafeFile, read_untrusted
from audit.keys.master import KEY_SIZE
from gateway.identity.keys import PEPPER_SIZE
from gateway.installation.installation import Installation, InstallationError
from gateway.installation.key_generations import SIGNER, VERIFIER, take_over
from gateway.policies.compiled import SECRET_SIZE
from regions.identity.encrypted_file import is_sealed_content

PATTERNS = (
    "cell",
    "secrets/*",
    "secrets/backends/*/*",
    "ca/ca.key",
    "audit/signer.key",
    "audit/signer.vkey",
    "audit/succession/*.note",
    "audit/keys/*",
)
"""What is exported, as globs relative to the data folder; the verifier key only where the key itself is in Vault."""
MAX_FILES = 10_000
MAX_FILE = 64 << 10  # bytes; the longest key is a certificate chain
MAX_SET = 32 << 20  # bytes of all together
MAX_NAME = 255

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_PEPPER = re.compile(r"secrets/pepper(\.[0-9]+)?(\.staged)?", re.ASCII)
_PATHS = re.compile(
    rf"cell|{_PEPPER.pattern}|secrets/(redaction|requests|manifests)|secrets/backends/{_NAME}/{_NAME}|ca/ca\.key"
    rf"|audit/signer\.v?key|audit/succession/{_NAME}\.note|audit/keys/{_NAME}",
    re.ASCII,
)
"""What is imported: paths of keys and no other. A name begins with a letter, digit or ``_`` (`_system.kek`)."""


def export_keys(installation: Installation, folder: Path) -> list[str]:
    """Write the key set of `installation` into `folder` (made, mode 0700), each file 0600; returns their names.

    What is made on first use is made now, so that the set is whole. Raises InstallationError for a file that is there
    already with another content, LoosePermissions for one that others may touch.
    """
    make_whole(installation)
    make_private_folder(folder)
    return [_put_new(folder / _flat(name), _own(installation.data / name)) for name in key_files(installation.data)]


def import_keys(data: Path, folder: Path, cell: str | None = None) -> list[str]:
    """Put the key set in `folder` into the data folder; returns the paths there.

    A folder that holds an older generation of the same installation's keys is given the newer ones, one that holds a
    newer generation keeps it (`gateway.installation.key_generations`). Files there may be links and readable by a
    group, as Kubernetes mounts them; what is written is not. Nothing is written outside of `data`. Raises
    InstallationError, before anything is written, if a name is no key's, if a file is none or is too large, if there is
    no ``cell`` or it is not `cell`, or if `data` holds keys of another installation.
    """
    found = read_key_set(folder)
    named = found["cell"].decode("ascii", "replace").strip()
    if cell is not None and cell != named:
        raise InstallationError(f"the key set in {folder} is of cell {named!r}, not {cell!r}; leave --cell out")
    for path in found:
        _inside(data, path)
    _require_whole(data, folder, found)
    _require_sound(folder, found)
    return take_over(data, found)


def _require_whole(data: Path, folder: Path, found: Mapping[str, bytes]) -> None:
    """Raises InstallationError if neither the key set nor `data` has a key that would then be created again: the folder
    would be of another installation than the databases and gateways that it is for."""
    there = {*found, *key_files(data)}
    lacking = [name for name, paths in _NEEDED.items() if not any(re.fullmatch(paths, path) for path in there)]
    if lacking:
        raise InstallationError(
            f"{folder} is not a whole key set: it lacks {', '.join(lacking)}; export it again where the cell runs,"
            " with: domicile init --export-keys"
        )


def _require_sound(folder: Path, found: Mapping[str, bytes]) -> None:
    """Raises InstallationError for a key whose content cannot be one."""
    for path, content in found.items():
        size = next((size for pattern, size in _SIZES if re.fullmatch(pattern, path)), 0)
        if len(content) < size and not is_sealed_content(content):
            raise InstallationError(
                f"{folder / _flat(path)} holds {len(content)} bytes, a key has at least {size}; export the key"
                " set again where the cell runs, with: domicile init --export-keys"
            )


_ROOTS = r"audit/keys/root\.key(\.[0-9]+)?"
_NEEDED = {
    "secrets/pepper": _PEPPER.pattern,
    "secrets/redaction": "secrets/redaction",
    "secrets/requests": "secrets/requests",
    "ca/ca.key": r"ca/ca\.key",
    "audit/signer.key": r"audit/signer\.v?key",
}
"""What a set cannot do without, by the paths that serve. The root key may be in Vault; keys that it wraps are
refused without it."""
_SIZES = (
    (_PEPPER.pattern, PEPPER_SIZE),
    (r"secrets/(redaction|requests|manifests)", SECRET_SIZE),
    (_ROOTS, KEY_SIZE),
    (r"ca/ca\.key|cell|audit/signer\.v?key", 1),
)
"""At least so many bytes, by path."""


def read_key_set(folder: Path) -> dict[str, bytes]:
    """The keys in `folder` by their path in a data folder. Raises InstallationError, OSError."""
    found: dict[str, bytes] = {}
    total = 0
    for file in _listed(folder):
        if (path := _path(file.name)) is None:
            raise InstallationError(
                f"{file} is not a file of a key set; a key set holds only what `domicile init --export-keys` wrote"
            )
        found[path] = _read(file)
        total += len(found[path])
        if total > MAX_SET:
            raise InstallationError(
                f"the folder {folder} holds more than {MAX_SET} bytes and is no key set; name the folder of a key set"
            )
    if "cell" not in found:
        raise InstallationError(
            f"the folder {folder} holds no key set, since it has no file 'cell'; name the folder of a key set"
        )
    return found


def import_pepper(data: Path, folder: Path) -> list[str]:
    """Take only the pepper of API keys over from another cell's key set, so that keys may work in both.

    Raises InstallationError if there is none in `folder`, or another in the data folder.
    """
    return [_put(_inside(data, path), content, _flat(path)) for path, content in sorted(_pepper(folder).items())]


def check_pepper(folder: Path) -> None:
    """Raises InstallationError if `folder` holds no pepper of another cell's key set."""
    _pepper(folder)


def _pepper(folder: Path) -> dict[str, bytes]:
    named = {file: _path(file.name) for file in _listed(folder)}
    found = {path: _read(file) for file, path in named.items() if path is not None and _PEPPER.fullmatch(path)}
    if not found:
        raise InstallationError(f"{folder} holds no pepper; name the folder that `--export-keys` wrote")
    return found


def key_files(data: Path) -> Iterator[str]:
    """Paths under `data` of the keys that are there, sorted."""
    with_key = (data / SIGNER).is_file()
    for pattern in PATTERNS:
        for file in sorted(data.glob(pattern)) if pattern != VERIFIER or not with_key else ():
            if file.is_file() and not file.name.startswith("."):
                yield str(file.relative_to(data))


def make_whole(installation: Installation) -> None:
    """Make what the first request or record would: pepper, redaction secret, authority, signers, master key."""
    installation.hasher()
    installation.policies()
    installation.authority()
    installation.signer()
    installation.request_key()
    _ = installation.keys


def _listed(folder: Path) -> list[Path]:
    """Files of the set. Names with a leading dot are those of the orchestrator (``..data``), not keys."""
    listed: list[Path] = []
    for file in folder.iterdir():
        if file.name.startswith("."):
            continue
        listed.append(file)
        if len(listed) > MAX_FILES:
            raise InstallationError(
                f"the folder {folder} holds more than {MAX_FILES} files and is no key set; name the folder of a key set"
            )
    return sorted(listed)


def _read(file: Path) -> bytes:
    try:
        return read_untrusted(file, MAX_FILE, follow_links=True)
    except UnsafeFile as error:
        raise InstallationError(str(error)) from error


def _inside(data: Path, path: str) -> Path:
    """`path` in `data`, where no folder on the way is a link that leads elsewhere."""
    place = data / path
    if not place.parent.resolve().is_relative_to(data.resolve()):
        raise InstallationError(f"{place} leads out of {data}; remove the link in {data}")
    return place


def _own(file: Path) -> bytes:
    """The content of a key of the data folder; the verifier key is public."""
    return file.read_bytes() if file.name == Path(VERIFIER).name else read_secret(file)


def _flat(path: str) -> str:
    return path.replace("/", "__")


def _path(name: str) -> str | None:
    """The path in a data folder that a file of this name is for; None if it is for none.

    A name in a folder may itself begin with an underscore: ``audit__keys___system.kek``.
    """
    path = name.replace("__", "/")
    return path if len(name) <= MAX_NAME and _PATHS.fullmatch(path) else None


def _put_new(file: Path, content: bytes) -> str:
    if create_secret(file, content) != content:
        raise InstallationError(f"{file} is there already and differs; name a new folder for the key set")
    return file.name


def _put(file: Path, content: bytes, name: str | None = None) -> str:
    if create_secret(file, content) != content:
        raise InstallationError(
            f"the file {file} is there already and is the key of another installation; name the key set of this one"
        )
    return name or file.name
