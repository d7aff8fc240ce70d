import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.records.prices import MAX_COST, NANO, Price, PriceBook, configured


def price(number=1, valid_from=0.0, **amounts):
    return Price("small", number, valid_from, **{"input": 0, "output": 0, "cached": 0, **amounts})


def test_a_cost_is_exact_in_nano_euros():
    assert price(input=200_000, output=600_000, cached=50_000).cost(1_000_000, 500_000, 400_000) == (
        round((0.6 * 0.2 + 0.4 * 0.05 + 0.5 * 0.6) * NANO)
    )
    assert price(output=1).cost(0, 499) == 0
    assert price(output=1).cost(0, 500) == 1, "half up"


def test_huge_numbers_stay_within_a_databases_integers():
    assert price(output=10**12).cost(0, 2**31 - 1) == MAX_COST


def test_the_version_of_the_instant_is_in_force_and_of_two_at_once_the_later_made():
    tracker = PriceBook([price(3, 100.0), price(1, 0.0), price(2, 100.0), price(4, 200.0)])
    assert [tracker.at("small", at).number for at in (0.0, 99.9, 100.0, 199.0, 1e9)] == [1, 1, 3, 3, 4]
    assert tracker.at("small", -1.0) is None
    assert tracker.at("other", 0.0) is None


def test_the_configurations_price_is_in_force_until_the_store_has_one():
    tracker = PriceBook([*configured({"small": (0.5, 1.5)}), price(1, 50.0, input=1)])
    assert (tracker.at("small", 49.0).number, tracker.at("small", 49.0).output) == (0, 1_500_000)
    assert tracker.at("small", 50.0).number == 1


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=20), st.integers(0, 10**9))
def test_the_sum_of_costs_is_off_by_at_most_half_a_nano_euro_a_call(calls, amount):
    each = price(input=amount, output=2 * amount, cached=amount)
    total = sum(each.cost(prompt, answer) for prompt, answer in calls)
    assert abs(total * 1000 - sum(prompt * amount + answer * 2 * amount for prompt, answer in calls)) <= 500 * len(
        calls
    )


@pytest.mark.parametrize("cached", [0, 100])
def test_cached_tokens_cost_what_they_are_said_to(cached):
    assert price(input=1000, cached=0).cost(100, 0, cached) == 100 - cached


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 100))
def test_a_line_of_a_batch_costs_its_share_rounded_once(amount, tokens, discount):
    whole = price(input=amount, output=amount, cached=amount, batch_discount=discount)
    share = whole.in_batch()
    assert share.cost(tokens, 0) == (tokens * amount * (100 - discount) + 50_000) // 100_000
    assert whole.cost(tokens, 0) == price(input=amount, output=amount, cached=amount).cost(tokens, 0)
