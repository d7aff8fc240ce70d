"""What files hold, read in another process: here, SQLite may have some of them open (`tests.fakes.open_guard`)."""

import subprocess
from pathlib import Path


def bytes_of(file: Path) -> bytes:
    return subprocess.run(["cat", "--", str(file)], stdout=subprocess.PIPE, check=True).stdout


def bytes_under(folder: Path) -> dict[str, bytes]:
    """By path in `folder`, of every file under it."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): bytes_of(file) for file in files}
