"""The spelling of a replica's cards, and what of it is refused."""

import pytest
from pydantic import ValidationError

from regions.fleet.cards import Cards
from regions.fleet.deployment import Deployment


@pytest.mark.parametrize(
    ("said", "cards", "spelled"),
    [
        ("cpu", Cards("cpu", 0), "cpu"), ("h100", Cards("h100"), "h100"), ("1xh100", Cards("h100"), "h100"),
        ("4xh100", Cards("h100", 4), "4xh100"), ("8xa100-80gb", Cards("a100-80gb", 8), "8xa100-80gb"),
        ("4090", Cards("4090"), "4090"), ("xpu", Cards("xpu"), "xpu"),
    ],
)  # fmt: skip
def test_a_spelling_and_its_cards(said, cards, spelled):
    assert Cards.parse(said) == cards
    assert str(cards) == spelled and Cards.parse(spelled) == cards


@pytest.mark.parametrize(
    ("said", "message"),
    [("0xh100", "1 to 8 cards, not 0"), ("9xh100", "not 9; lower --gpus"), ("2xcpu", "write cpu"),
     ("", "names no card"), ("h 100", "names no card"), ("4x", "4x")],
)  # fmt: skip
def test_what_is_no_number_of_cards_is_refused(said, message):
    if said == "4x":  # a name like any other, which the planner does not know
        assert Cards.parse(said) == Cards("4x")
        return
    with pytest.raises(ValueError, match=message):
        Cards.parse(said)


def test_a_deployment_keeps_one_spelling():
    given = {"tenant": "acme", "id": "small", "model": "m", "weights": "w", "regions": ("eu-fr-par",)}
    assert Deployment(**given, gpu="1xh100").gpu == "h100"
    assert Deployment(**given, gpu="4xh100").cards == Cards("h100", 4)
    with pytest.raises(ValidationError, match="1 to 8 cards"):
        Deployment(**given, gpu="16xh100")
