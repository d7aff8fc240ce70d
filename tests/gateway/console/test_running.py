from gateway.console.running import rows_of, sums_of

LOAD = {
    "available": True, "role": "mixed", "in_flight": 2, "running": 3, "waiting": 1, "tokens_per_s": 100.0,
    "first_token_ms": 150.0, "watts": 300.0,
}  # fmt: skip
SILENT = LOAD | {name: None for name in ("running", "waiting", "tokens_per_s", "first_token_ms", "watts")}


def replica(name, state="ready"):
    return {
        "id": name, "state": state, "role": "decode", "region": "eu-fr-par", "gpu": "h100", "created_at": "",
        "reason": None,
    }  # fmt: skip


def backend(name, **more):
    return {"id": name, "region": "eu-de-fra", "created_at": "", "revoked_at": None} | more


def test_a_replica_is_listed_once_and_before_what_was_registered_by_itself():
    rows = rows_of(
        [{"id": "large", "replicas": [replica("large-1"), replica("large-2", "asleep")]}],
        [backend("large-1"), backend("own"), backend("gone", revoked_at="2026-01-01")],
        {"large-1": LOAD, "own": LOAD | {"available": False}},
    )
    assert [(row.name, row.deployment, row.state) for row in rows] == [
        ("large-1", "large", "ready"), ("large-2", "large", "asleep"), ("own", None, "away")
    ]  # fmt: skip
    assert [row.load is None for row in rows] == [False, True, False]


def test_sums_are_over_what_is_known_and_the_price_over_what_holds_a_card():
    rows = rows_of(
        [{"id": "large", "replicas": [replica("a"), replica("b", "asleep"), replica("c", "starting")]}],
        [backend("own")],
        {"a": LOAD, "own": LOAD | {"tokens_per_s": 300.0, "first_token_ms": 90.0}},
    )
    sums = sums_of(rows, {"large": 1.8})
    assert (sums.tokens_per_s, sums.running, sums.waiting, sums.first_token_ms, sums.watts) == (400, 6, 2, 150, 600)
    assert sums.eur_per_hour == 3.6
    assert sums.eur_per_million == 3.6 / (400 * 3600 / 1e6)


def test_where_nothing_tells_of_its_speed_nothing_is_made_up():
    rows = rows_of([{"id": "large", "replicas": [replica("a")]}], [], {"a": SILENT})
    sums = sums_of(rows, {"large": 1.8})
    assert (sums.tokens_per_s, sums.first_token_ms, sums.watts, sums.eur_per_million) == (None,) * 4
    assert (sums.running, sums.waiting) == (2, 0)
    assert sums_of([], {}).eur_per_hour == 0
