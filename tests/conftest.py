"""Randomised tests: a seeded sample in every run, the whole of it in `make campaign`."""

import os

import pytest
from hypothesis import HealthCheck, settings

CAMPAIGN = int(os.environ.get("DOMICILE_CAMPAIGN", "0"))
"""How many times the examples of an ordinary run; 0 for an ordinary run, whose examples are always the same."""

settings.register_profile("sample", derandomize=True, deadline=None)
settings.register_profile(
    "campaign", derandomize=False, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("campaign" if CAMPAIGN else "sample")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not CAMPAIGN:
        return
    for item in items:
        test = getattr(item, "obj", None)
        chosen = getattr(test, "_hypothesis_internal_use_settings", None)
        if chosen is not None:
            more = settings(chosen, max_examples=chosen.max_examples * CAMPAIGN)
            test._hypothesis_internal_use_settings = more
            item.user_properties.append(("examples", more.max_examples))


@pytest.fixture(autouse=True, scope="session")
def _no_model_hub() -> None:
    """Nothing in the suite may fetch from a network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
