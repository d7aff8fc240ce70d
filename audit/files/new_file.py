"""Files that the product writes: whole or not at all, under modes that do not depend on the umask.

A draft has an unpredictable name and is created with O_EXCL, so that neither a link nor a file planted under its
name is written through. A draft that a crash left behind is recognised by its leading dot.
"""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}
"""What `link` says on file systems that have none, as those of memory cards."""
PRIVATE = 0o600
PUBLIC = 0o644
"""For what anybody may read: verifier keys, certificates, tiles."""


@contextmanager
def new_file(target: Path, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """A file that appears as `target` once the block has ended well, durably.

    Raises FileExistsError if there is a `target`, a dangling link included, at the beginning or at the end; OSError.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists already; choose another name or remove it")
    with draft_of(target, mode) as (draft, file):
        yield file
        _finish(file)
        try:
            os.link(draft, target)  # unlike rename, it replaces nothing
        except FileExistsError:
            raise FileExistsError(f"{target} exists already; choose another name or remove it") from None
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS or os.path.lexists(target):
                raise
            os.rename(draft, target)
    sync_folder(target.parent)


def replace_file(target: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replace `target` durably: a reader sees the old or the new content. A link is replaced, not followed.

    Raises OSError.
    """
    with draft_of(target, mode) as (draft, file):
        file.write(content)
        _finish(file)
        os.replace(draft, target)
    sync_folder(target.parent)


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file at `path`, which is created with mode 0600 whatever the umask. Raises OSError."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE)
    except FileExistsError:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE)
    with suppress(PermissionError):  # a file system without modes, whose mount decides
        os.fchmod(descriptor, PRIVATE)
    return descriptor


def make_private_folder(folder: Path) -> None:
    """Create `folder` and its missing parents, each with mode 0700 whatever the umask. Raises OSError."""
    _make_folder(folder, 0o700)


def make_public_folder(folder: Path) -> None:
    """As `make_private_folder`, with mode 0755: for files that anybody may read."""
    _make_folder(folder, 0o755)


def _make_folder(folder: Path, mode: int) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
            each.chmod(mode)
        except FileExistsError:
            if not each.is_dir():
                raise


def describe_error(error: Exception, folder: Path) -> str:
    """What `error` says, and what to do where the reason is that `folder` cannot be written."""
    if not folder.is_dir() or os.access(folder, os.W_OK):
        return str(error)
    return f"{error}; make {folder} writable for this user, or work on a copy of it"


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def draft_of(target: Path, mode: int) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside `target` and its path; the caller renames it to keep it. Nothing is synced. Raises OSError."""
    if not target.parent.is_dir():  # else the message is about the draft, whose name says nothing to anybody
        raise FileNotFoundError(f"there is no folder {target.parent}; create it, or name a file in another one")
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            with suppress(PermissionError):  # a file system without modes, whose mount decides
                os.fchmod(file.fileno(), mode)
            yield draft, file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


def _finish(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
