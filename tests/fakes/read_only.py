"""A folder on a medium that cannot be written: for root a read-only mount, for others taken permissions."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.needs import missing


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """While the block runs, nothing in `folder` can be written."""
    if os.geteuid() != 0:
        modes = {path: path.stat().st_mode for path in [folder, *folder.rglob("*")]}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        try:
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        return
    bound = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False)
    if bound.returncode:
        missing("root without the right to mount: run this as another user")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder, folder], capture_output=True, check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], capture_output=True, check=True)
