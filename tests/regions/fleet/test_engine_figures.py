from regions.fleet.engine_figures import WINDOW_S, EngineFigures, EngineRates, RecentFigures
from regions.fleet.fleet import Fleet
from tests.regions.fleet.test_fleet import backend


def told(*figures, every=2.0):
    recent = RecentFigures()
    for number, each in enumerate(figures):
        recent.note(number * every, each)
    return recent, (len(figures) - 1) * every


def test_rates_are_what_the_counters_grew_by():
    recent, now = told(EngineFigures(100, 1, 0.5, 1000, 0.2, 0.5, 80), EngineFigures(300, 3, 0.9, 1600, 0.9, 0.6, 300))
    assert recent.rates(now) == EngineRates(100, 200, 3000, 0.9, 0.6, 300)


def test_one_word_alone_tells_no_rate_but_what_is_now():
    recent, now = told(EngineFigures(100, 1, 0.5, 1000, 0.2, 0.5, 80))
    assert recent.rates(now) == EngineRates(gpu_use=0.2, gpu_memory=0.5, watts=80)


def test_an_engine_that_wrote_nothing_has_a_speed_of_zero_and_no_first_token():
    recent, now = told(EngineFigures(100, 1, 0.5, 1000), EngineFigures(100, 1, 0.5, 1200))
    assert recent.rates(now) == EngineRates(tokens_per_s=0)


def test_an_engine_that_began_anew_is_not_judged_by_the_one_before():
    recent, now = told(EngineFigures(5000), EngineFigures(20), EngineFigures(60))
    assert recent.rates(now).tokens_per_s == 20


def test_only_the_window_counts():
    recent, now = told(*(EngineFigures(10 * number) for number in range(100)), EngineFigures(990 + 300))
    rate = recent.rates(now).tokens_per_s
    assert 5 * 1 < rate < 5 * 4
    assert len(recent._told) <= WINDOW_S / 2 + 2


def test_a_backend_that_is_silent_for_the_window_has_no_rates():
    recent, now = told(EngineFigures(10), EngineFigures(20))
    assert recent.rates(now + WINDOW_S + 1) is None
    assert RecentFigures().rates(0) is None


def test_the_fleet_keeps_them_for_its_own_backends_and_forgets_those_of_a_changed_one():
    clock = [0.0]
    one, other = backend(), backend("acme-2")
    fleet = Fleet([one], now=lambda: clock[0])
    for backend_now in (one, other):
        fleet.mark_figures(backend_now, EngineFigures(10))
    clock[0] = 2.0
    fleet.mark_figures(one, EngineFigures(50))
    assert fleet.rates(one.id).tokens_per_s == 20
    assert fleet.rates(other.id) is None
    fleet.replace([one.model_copy(update={"url": "https://10.9.9.9:1"})])
    assert fleet.rates(one.id) is None
