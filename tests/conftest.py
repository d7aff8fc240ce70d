"""Randomised tests: a seeded sample in every run, the whole of it in `make campaign`. And what keeps a run short."""

import gc
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import parts
from tests.fakes import (
    built_commands,
    compiled_statements,
    known_settings,
    migrated,
    open_guard,
    quick_listener,
    quick_server,
)

CAMPAIGN = int(os.environ.get("DOMICILE_CAMPAIGN", "0"))
"""How many times the examples of an ordinary run; 0 for an ordinary run, whose examples are always the same."""


def how_many(whole: int, part: int) -> int:
    """Rounds, cases or kills of a long test: `part` in an ordinary run, in a campaign `whole` times its factor."""
    return whole * CAMPAIGN if CAMPAIGN else part


def seed_of(fixed: int) -> int:
    """Where a long test begins to draw: at `fixed` in an ordinary run, in a campaign at a place of its own."""
    return random.SystemRandom().randrange(2**32) if CAMPAIGN else fixed


LEAST_EXAMPLES = 25

settings.register_profile("sample", derandomize=True, deadline=None)
settings.register_profile(
    "campaign", derandomize=False, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("campaign" if CAMPAIGN else "sample")


MEMORY = Path("/dev/shm")
ROOM = 4 << 30
LONG = (
    "backend/kernels/test_hopper.py",
    "deploy/test_operations.py",
    "gateway/test_fleet_for_real.py",
    "gateway/cells/test_app.py",
    "gateway/test_crash.py",
    "audit/test_crash.py",
    "backend/engine/test_oracle.py",
    "backend/engine/test_oracle_ahead.py",
    "gateway/test_cluster.py",
    "gateway/test_failover.py",
    "gateway/test_embeddings_for_real.py",
    "gateway/cli/admin/test_replay.py",
    "gateway/installation/test_enrolment.py",
    "gateway/test_canary.py",
    "bench/fleet/test_scale.py",
)
"""Modules whose tests take longest begin first: at the end one worker would wait for the other to come through them."""


def _use_memory() -> None:
    """Files of tests go where a commit need not wait for a disk, if there is such a place and it has room.

    Each test commits tens of times, and what is killed are processes, never the machine.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM:
        return
    if not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


_use_memory()
open_guard.install()
gc.disable()  # while modules are imported and tests collected, hardly anything is garbage: looking takes a third of it


def _when(item: pytest.Item) -> int:
    """Place in the order of modules; the order inside of them stays."""
    return next((at for at, long in enumerate(LONG) if item.path.as_posix().endswith(f"tests/{long}")), len(LONG))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", choices=("quick", "rest"), help="of the suite, as tests/parts.py divides it (default: all of it)"
    )


def _keep_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part")
    if part is None:
        return
    chosen = parts.quick((item.nodeid for item in items), parts.slow_functions())
    left_out = [item for item in items if (item.nodeid in chosen) != (part == "quick")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if (item.nodeid in chosen) == (part == "quick")]


def pytest_collection_finish() -> None:
    """What is there by now stays to the end: no later collection of garbage looks through it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _keep_part(config, items)
    items.sort(key=_when)
    limit = float(items[0].config.getini("timeout")) * CAMPAIGN if items else 0  # `--timeout` has precedence
    sized = set()
    for item in items:
        if CAMPAIGN and items[0].config.getoption("timeout") is None:
            item.add_marker(pytest.mark.timeout(limit), append=False)
        test = getattr(item, "obj", None)
        chosen = getattr(test, "_hypothesis_internal_use_settings", None)
        if chosen is None:
            continue
        inner = getattr(test, "__func__", test)
        if inner not in sized:  # once for all the items of one function
            sized.add(inner)
            chosen = settings(chosen, max_examples=_examples(chosen.max_examples))
            inner._hypothesis_internal_use_settings = chosen
        item.user_properties.append(("examples", chosen.max_examples))


def _examples(whole: int) -> int:
    """Of a property: a campaign draws `whole` times its factor, an ordinary run the first of them."""
    return whole * CAMPAIGN if CAMPAIGN else min(whole, max(LEAST_EXAMPLES, whole // 3))


@pytest.fixture(autouse=True, scope="session")
def _no_model_hub() -> None:
    """Nothing in the suite may fetch from a network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True, scope="session")
def _servers_and_listeners_stop_at_once() -> Iterator[None]:
    with quick_server.quick(), quick_listener.quick():
        yield


@pytest.fixture(autouse=True, scope="session")
def _control_stores_are_copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    module = sys.modules.get("gateway.database.database")
    if module is None:  # no test of this run opens one
        yield
        return
    with compiled_statements.shared(module), migrated.copied(module.Database, tmp_path_factory.mktemp("migrated")):
        yield


@pytest.fixture(autouse=True, scope="session")
def _settings_and_commands_are_made_once() -> Iterator[None]:
    with known_settings.known(), built_commands.kept():
        yield
