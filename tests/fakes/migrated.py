"""A new SQLite control store begins as a copy of one that the migrations made, and is opened as any other.

They would make the same again in each of two thousand tests, a twelfth of a second for each. Processes that tests
start, and tests of the store itself (`run`), do without.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any

from audit.files.new_file import make_private_folder


@contextmanager
def copied(store: Any, folder: Path) -> Iterator[None]:
    """While the block runs, for `store` (`gateway.database.database.Database`); the template is made in `folder`."""
    real, made = store.open.__func__, []

    def opened(cls: Any, data: Path, *, url: str | None = None, **more: Any) -> Any:
        if url is None and not any(data.glob("control.db*")):
            if not made:
                real(cls, folder).close()
                made.append((folder / "control.db").read_bytes())
            with suppress(OSError):  # where there can be no file, the program is to say so
                make_private_folder(data)
                new = data / f"new-{os.getpid()}-{get_ident()}"  # whole before another thread or process can see it
                with open(new, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                    file.write(made[0])
                    os.fchmod(file.fileno(), 0o600)
                with suppress(FileExistsError):
                    os.link(new, data / "control.db")
                new.unlink()
        return real(cls, data, url=url, **more)

    opened.__wrapped__ = real  # type: ignore[attr-defined]
    store.open = classmethod(opened)
    try:
        yield
    finally:
        store.open = classmethod(real)


@contextmanager
def run(store: Any) -> Iterator[None]:
    """Here the migrations make every store after all."""
    copying = store.open.__func__
    store.open = classmethod(getattr(copying, "__wrapped__", copying))
    try:
        yield
    finally:
        store.open = classmethod(copying)
