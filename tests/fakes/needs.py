"""What a test needs and this machine may lack: skipped where that is said aloud, a failure where nothing may be."""

import os
from typing import NoReturn

import pytest

MUST_NOT_SKIP = bool(os.environ.get("CI")) or os.environ.get("DOMICILE_TEST_DATABASES") == "required"


def missing(what: str) -> NoReturn:
    """Ends the test. `what`: what is not there, and how to get it."""
    (pytest.fail if MUST_NOT_SKIP else pytest.skip)(what)
    raise AssertionError("unreachable")
