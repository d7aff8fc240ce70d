from base64 import b64decode

import pytest

from backend.wire import MarksFound, MarksRequest
from gateway.marks.detection import LEAST_PAIRS, PERIODS_AT_ONCE, detected
from gateway.store.marks import PeriodKey

KEYS = [
    PeriodKey("2026-12", b"c" * 32, ("small", "large")),
    PeriodKey("2026-11", b"b" * 32, ("small",)),
    PeriodKey("2026-10", b"a" * 32, ("gone",)),
]


def backends(p_values, pairs=200, **broken):
    """What each model's backend answers: `p_values` by the first letter of a key."""

    async def ask(model, body):
        if model == "gone":
            return None
        if model in broken:
            return broken[model]
        asked = MarksRequest.model_validate_json(body)
        found = [p_values.get((model, b64decode(key)[:1]), 0.5) for key in asked.keys]
        return MarksFound(scheme="s/1", tokens=pairs + 3, pairs=pairs, p_values=found).model_dump_json().encode()

    return ask


async def test_the_month_that_fits_is_named_and_the_p_value_covers_all_tests():
    found = await detected(KEYS, "a text", backends({("small", b"b"): 1e-8}))
    assert (found.verdict, found.period, found.tests) == ("marked", "2026-11", 3)
    assert found.p_below == 1e-6, "3e-8 in coarse steps"
    assert (found.models, found.untested_models) == (("large", "small"), ("gone",))


@pytest.mark.parametrize(("p", "verdict"), [(3.3e-4, "marked"), (3.4e-4, "not_found"), (1e-3, "not_found")])
async def test_a_p_value_that_one_key_would_have_is_corrected_for_those_tried(p, verdict):
    assert (await detected(KEYS, "a text", backends({("large", b"c"): p}))).verdict == verdict


async def test_a_short_text_is_never_said_to_be_without_a_mark():
    assert (await detected(KEYS, "a text", backends({}, LEAST_PAIRS - 1))).verdict == "too_short"
    assert (await detected(KEYS, "a text", backends({}, LEAST_PAIRS))).verdict == "not_found"
    assert (await detected(KEYS, "a text", backends({("small", b"c"): 1e-9}, 30))).verdict == "marked"


@pytest.mark.parametrize(
    "broken",
    [b"no json", b'{"scheme":"s","tokens":1,"pairs":1,"p_values":[0.1,0.2,0.3]}', b'{"p_values":[2,0.1]}', b"{}"],
)
async def test_an_answer_that_is_none_counts_as_untested(broken):
    found = await detected(KEYS, "a text", backends({}, small=broken))
    assert found.untested_models == ("gone", "small")
    nothing = await detected(KEYS[1:], "a text", backends({}, small=broken))
    assert (nothing.verdict, nothing.tests) == ("untested", 0)


async def test_a_model_with_none_but_keys_older_than_are_tried_is_named_as_untested():
    old = [PeriodKey(f"{2036 - at // 12}-{12 - at % 12:02}", b"c" * 32, ("small",)) for at in range(PERIODS_AT_ONCE)]
    found = await detected([*old, PeriodKey("2026-12", b"a" * 32, ("older",))], "a text", backends({}))
    assert (found.tests, found.untested_models) == (PERIODS_AT_ONCE, ("older",))
