"""Which settings a reload puts in force, and which it names for a restart."""

import pytest

from gateway.configuration.settings import load_settings
from gateway.server.reload import LiveSettings, Reloaded


def settings(tmp_path, **more):
    return load_settings(data=tmp_path / "data", node="gw-1", **more)


class Applied(list):
    """Appliers that note what they were given."""

    def of(self, *names):
        return {name: lambda new, name=name: self.append((name, new)) for name in names}


def test_a_changed_setting_is_put_in_force_and_named(tmp_path):
    applied = Applied()
    live = LiveSettings(settings(tmp_path), applied.of("requests", "prices"))
    new = settings(tmp_path, requests={"max_attempts": 5, "max_body_bytes": 2048})
    assert live.reload(new) == Reloaded(("requests.max_attempts", "requests.max_body_bytes"), ())
    assert applied == [("requests", new)], "once, for both"


def test_what_nothing_can_change_is_named_for_a_restart_each_time_until_then(tmp_path):
    live = LiveSettings(settings(tmp_path), {})
    new = settings(tmp_path, listen={"port": 1}, fleet={"every_s": 2})
    for _ in range(2):
        assert live.reload(new) == Reloaded((), ("fleet.every_s", "listen.port"))
    assert live.reload(settings(tmp_path)) == Reloaded((), ()), "it was put back"


def test_what_is_in_force_is_what_the_next_reload_compares_with(tmp_path):
    applied = Applied()
    live = LiveSettings(settings(tmp_path), applied.of("requests"))
    new = settings(tmp_path, requests={"max_attempts": 5})
    live.reload(new)
    assert live.reload(new) == Reloaded((), ())
    assert live.reload(settings(tmp_path)) == Reloaded(("requests.max_attempts",), ())
    assert len(applied) == 2


def test_prices_have_one_name_whichever_model_they_are_of(tmp_path):
    price = {"input_eur_per_million": 1, "output_eur_per_million": 2}
    live = LiveSettings(settings(tmp_path, prices={"a": price}), Applied().of("prices"))
    assert live.reload(settings(tmp_path, prices={"A secret model name": price})).applied == ("prices",)
    assert live.reload(settings(tmp_path)).applied == ("prices",)


def test_a_setting_beside_one_that_can_change_is_not_taken_for_it(tmp_path):
    live = LiveSettings(settings(tmp_path), Applied().of("listen.operations_from"))
    new = settings(tmp_path, listen={"operations_from": ["10.0.0.0/8"], "lame_duck_s": 3})
    assert live.reload(new) == Reloaded(("listen.operations_from",), ("listen.lame_duck_s",))


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (Reloaded((), ()), "nothing has changed"),
        (Reloaded(("prices",), ()), "applied prices"),
        (Reloaded((), ("listen.port",)), "restart the gateway for listen.port"),
        (Reloaded(("a", "b"), ("c", "d")), "applied a, b; restart the gateway for c, d"),
    ],
)
def test_it_says_what_came_of_it(done, said):
    assert str(done) == said
