"""What workers are called, and which of them nobody will be called again."""

import pytest

from gateway.workers.worker_names import gateway_of, left_behind, worker_name

LOCKS = ["gw-1a", "gw-1b", "gw-2a", "gw-2b", "gw-3a", "gw-11a", "gw-1a-1b", "other-1a", "gw", "gw-1c", "gw-1aa"]


@pytest.mark.parametrize(
    ("place", "generation", "places", "found"),
    [
        (1, "a", 2, ["gw-11a", "gw-1b", "gw-3a"]),
        (1, "b", 2, ["gw-11a", "gw-1a", "gw-3a"]),
        (2, "a", 2, ["gw-2b"]),
        (1, "a", 11, ["gw-1b"]),
        (12, "a", 12, []),
    ],
)
def test_a_worker_answers_for_its_twin_and_the_first_also_for_places_that_are_gone(
    tmp_path, place, generation, places, found
):
    for name in LOCKS:
        (tmp_path / f"node-{name}.lock").touch()
    assert left_behind(tmp_path, "gw", place, generation, places) == found


@pytest.mark.parametrize(
    ("node", "gateway"),
    [("gw-1-2b", "gw-1"), ("gw-1a", "gw"), ("gw-1", "gw-1"), ("gw-1c", "gw-1c"), ("gw", "gw"), ("gw-a", "gw-a")],
)
def test_the_gateway_of_a_worker_is_what_is_before_its_place(node, gateway):
    assert gateway_of(node) == gateway


def test_a_name_with_signs_of_a_pattern_is_meant_as_it_is(tmp_path):
    for name in ("a.c-1b", "abc-1b"):
        (tmp_path / f"node-{name}.lock").touch()
    assert left_behind(tmp_path, "a.c", 1, "a", 1) == ["a.c-1b"]
    assert worker_name("a.c", 1, "b") == "a.c-1b"
