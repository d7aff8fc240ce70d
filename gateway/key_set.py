"""The secrets that every gateway of a cell has to hold, as files of one flat folder.

The shape in which secrets are handed to a process: a mounted Kubernetes Secret, a systemd credential. A
path in the data folder becomes a name by writing ``__`` for ``/``, since such names may hold no slash.

Certificates of tenants and values under retention are not among them: those are made anew, these are the cell's data.
"""

from collections.abc import Iterator
from pathlib import Path

from audit.secret_file import create_secret, read_secret
from gateway.installation import Installation, InstallationError
from gateway.key_generations import take_over

PATTERNS = (
    "cell",
    "secrets/*",
    "secrets/backends/*/*",
    "ca/ca.key",
    "audit/signer.key",
    "audit/succession/*.note",
    "audit/keys/*",
)


def export_keys(installation: Installation, folder: Path) -> list[str]:
    """Write the key set of `installation` into `folder` (made, mode 0700), each file 0600; returns their names.

    What is made on first use is made now, so that the set is whole. Raises InstallationError for a file that is there
    already with another content, LoosePermissions for one that others may touch.
    """
    make_whole(installation)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return [
        _put_new(folder / _flat(name), read_secret(installation.data / name)) for name in key_files(installation.data)
    ]


def import_keys(data: Path, folder: Path, cell: str | None = None) -> list[str]:
    """Put the key set in `folder` into the data folder; returns the paths there.

    A folder that holds an older generation of the same installation's keys is given the newer ones, one that holds a
    newer generation keeps it (`gateway.key_generations`). Files there may be links and readable by a group, as
    Kubernetes mounts them; what is written is not. Raises InstallationError if a name is no key's, if there is no
    ``cell``, or if `data` holds keys of another installation; then nothing was written.
    """
    files = {file.name: file for file in folder.iterdir() if not file.name.startswith(".") and file.is_file()}
    if "cell" not in files:
        raise InstallationError(f"{folder} holds no key set: it has no file 'cell'")
    said = files["cell"].read_bytes().decode("ascii", "replace").strip()
    if cell is not None and cell != said:
        raise InstallationError(f"the key set in {folder} is of cell {said!r}, not {cell!r}; leave --cell out")
    paths = {name: Path(name.replace("__", "/")) for name in files}
    for name, path in paths.items():
        if len(path.parts) > 4 or ".." in path.parts or not any(path.match(pattern) for pattern in PATTERNS):
            raise InstallationError(f"{folder / name} is not a file of a key set")
    return take_over(data, {str(path): files[name].read_bytes() for name, path in paths.items()})


def import_pepper(data: Path, folder: Path) -> list[str]:
    """Take only the pepper of API keys over from another cell's key set, so that keys may work in both.

    Raises InstallationError if there is none in `folder`, or another in the data folder.
    """
    return [_put(data / file.name.replace("__", "/"), file.read_bytes(), file.name) for file in check_pepper(folder)]


def check_pepper(folder: Path) -> list[Path]:
    """The files of the pepper in another cell's key set. Raises InstallationError if there are none."""
    files = sorted(file for file in folder.glob("secrets__pepper*") if file.is_file())
    if not files:
        raise InstallationError(f"{folder} holds no pepper; name the folder that `--export-keys` wrote")
    return files


def key_files(data: Path) -> Iterator[str]:
    """Paths under `data` of the keys that are there, sorted."""
    for pattern in PATTERNS:
        for file in sorted(data.glob(pattern)):
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


def _flat(path: str) -> str:
    return path.replace("/", "__")


def _put_new(file: Path, content: bytes) -> str:
    if create_secret(file, content) != content:
        raise InstallationError(f"{file} is there already and differs; name a new folder for the key set")
    return file.name


def _put(file: Path, content: bytes, name: str | None = None) -> str:
    if create_secret(file, content) != content:
        raise InstallationError(f"{file} is there already and differs: it is the key of another installation")
    return name or file.name
