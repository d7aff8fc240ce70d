"""What this package offers of the planner, and what the planner has."""

from backend.planner.cards import CARDS
from backend.quantization import FORMATS
from gateway.admin.deployments import PlanAsked
from regions.launchers.planning import KNOWN_CARDS, QUANTIZATIONS


def test_the_cards_and_formats_are_those_of_the_planner():
    assert set(KNOWN_CARDS) == set(CARDS)
    assert tuple(format.name for format in FORMATS) == QUANTIZATIONS


def test_the_admin_api_takes_the_same_formats():
    for name in QUANTIZATIONS:
        assert PlanAsked(weights="m", gpu="h100", quantization=name).quantization == name
