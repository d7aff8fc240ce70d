"""What `make gpu-test` runs."""

import re
from pathlib import Path

from bench.kernels.gpu_test import ALONE, DIVIDED, SUITES

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests" / "backend"
REACHES_A_CARD = re.compile(r"\bDEVICE\b|\bahead\(|torch\.cuda\.is_available\(\)")
ON_CPUS = {
    "engine/cache/test_sleeper.py": "of a CPU's pages; engine/gpu/test_sleeper.py is the card's",
    "engine/gpu/test_resumed.py": "float32, which the library does not have; test_paged_layers.py stands for it",
}


def listed(path: str) -> bool:
    return any(path == suite or path.startswith(f"{suite}/") for suite in (*SUITES, *ALONE, *DIVIDED))


def test_every_test_that_runs_on_a_card_where_there_is_one_is_run_there() -> None:
    found = {
        str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py") if REACHES_A_CARD.search(path.read_text())
    }
    missing = {path for path in found if not listed(f"tests/backend/{path}")} - ON_CPUS.keys()
    assert not missing, f"{sorted(missing)} run on a card and gpu_test.py does not name them; add them to SUITES"


def test_every_suite_that_it_names_is_there() -> None:
    assert [suite for suite in (*SUITES, *ALONE, *DIVIDED) if not (ROOT / suite).exists()] == []
