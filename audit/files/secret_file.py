"""Files that hold secrets: written atomically, readable by their owner only, refused otherwise."""

import os
import secrets
import stat
from pathlib import Path

from audit.files.new_file import make_private_folder, sync_folder


class LoosePermissions(PermissionError):
    """The file can be read or replaced by other users, belongs to another user, or is not a regular file."""


def read_secret(path: Path) -> bytes:
    """The content of `path`. Raises LoosePermissions if others may touch it, FileNotFoundError if it is absent."""
    if path.is_symlink():  # its creator chooses what is read; O_NOFOLLOW below closes the race
        raise LoosePermissions(f"the path {path} is a symbolic link; put the file itself there")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise LoosePermissions(f"{path} is not a plain file; put a plain file there")
        if found.st_uid != os.geteuid():
            raise LoosePermissions(f"{path} belongs to user {found.st_uid}, who may change it; run: chown it to yours")
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            raise LoosePermissions(f"{path} has mode {mode:04o}: others may touch it; run: chmod 600 {path}")
        return file.read()


def write_secret(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, mode 0600, durably and at once: a reader sees the old or the new, never a part."""
    temporary = _write_beside(path, content)
    os.replace(temporary, path)
    sync_folder(path.parent)


def replace_secret(path: Path, content: bytes) -> None:
    """As `write_secret`, and the bytes that were there are overwritten: a copy of the disk does not hold them."""
    with path.open("r+b") as old:
        write_secret(path, content)
        _overwrite(old.fileno())


def shred_secret(path: Path) -> None:
    """Overwrite `path`, then remove it. FileNotFoundError if it is absent."""
    with path.open("r+b") as old:
        _overwrite(old.fileno())
        path.unlink()
    sync_folder(path.parent)


def create_secret(path: Path, content: bytes) -> bytes:
    """Write `path` unless it exists, and return what it now holds: of several processes at once, one wins for all."""
    temporary = _write_beside(path, content)
    try:
        os.link(temporary, path)  # unlike rename, fails if the name is taken
        sync_folder(path.parent)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)
    return read_secret(path)


def _overwrite(descriptor: int) -> None:
    os.pwrite(descriptor, bytes(os.fstat(descriptor).st_size), 0)
    os.fsync(descriptor)


def _write_beside(path: Path, content: bytes) -> Path:
    make_private_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return temporary
