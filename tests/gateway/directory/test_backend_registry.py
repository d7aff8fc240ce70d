"""What of a backend is known, and whose calls are judged again when that changes."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.directory.shown import Shown
from tests.gateway.parts import World

SHOWN = Shown(sha256="ab" * 32)


@pytest.fixture
def world():
    return World("acme/eu-fr-par/acme-1", "globex/eu-fr-par/globex-1")


def test_what_a_backend_shows_becomes_a_fact_of_it_alone(world):
    (before,) = world.registry.facts("acme", "small")
    assert before.pending and before.weights is None
    assert world.registry.show(world.backend("acme-1"), SHOWN)
    (after,) = world.registry.facts("acme", "small")
    assert not after.pending and after.weights == SHOWN.sha256
    (other,) = world.registry.facts("globex", "small")
    assert other.pending and other.weights is None


def test_what_a_backend_shows_makes_no_call_of_another_tenant_be_judged_again(world):
    mine, theirs = world.registry.facts("acme", "small"), world.registry.facts("globex", "small")
    world.registry.show(world.backend("acme-1"), SHOWN)
    assert world.registry.facts("acme", "small") is not mine
    assert world.registry.facts("globex", "small") is theirs


def test_what_it_has_shown_before_is_no_news(world):
    backend = world.backend("acme-1")
    assert not world.registry.show(backend, None)
    assert world.registry.show(backend, SHOWN)
    facts = world.registry.facts("acme", "small")
    assert not world.registry.show(backend, SHOWN)
    assert world.registry.facts("acme", "small") is facts
    assert world.registry.show(backend, None)
    assert world.registry.facts("acme", "small")[0].pending


def test_a_backend_that_is_registered_anew_has_shown_nothing_yet(world):
    world.registry.show(world.backend("acme-1"), SHOWN)
    world.register("acme/de-fra/acme-1", "globex/eu-fr-par/globex-1")
    (fact,) = world.registry.facts("acme", "small")
    assert fact.pending and fact.weights is None


@pytest.mark.parametrize("days", [1, -1, 400])
def test_facts_are_those_of_the_day_also_where_the_clock_is_put_back(world, days):
    noon = datetime(2026, 11, 30, 12, tzinfo=UTC)
    now = [noon]
    world.registry._clock = lambda: now[0].timestamp()
    facts = world.registry.facts("acme", "small")
    for hours in (-12, -5, 0, 11.99):
        now[0] = noon + timedelta(hours=hours)
        assert world.registry.facts("acme", "small") is facts, "within the day in UTC"
    now[0] = noon + timedelta(days=days)
    other = world.registry.facts("acme", "small")
    assert other is not facts
    now[0] += timedelta(hours=11)
    assert world.registry.facts("acme", "small") is other
    now[0] = noon
    assert world.registry.facts("acme", "small") is not other
