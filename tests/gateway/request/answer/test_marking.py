"""A mark that policy demands is there or the call fails; what came of it is said."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from audit.errors import KeyProviderError
from gateway.database.errors import DatabaseUnavailable
from gateway.errors import BackendFailed, BackendUnavailable
from gateway.openai.endpoints import CHAT, EMBEDDINGS
from gateway.request.answer.marking import Marker, announced, outcome
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.stages import Mark, Routed
from gateway.store.marks import PeriodKey

NOW = datetime(2026, 12, 31, 23, 59, tzinfo=UTC)


def routed(marking=("watermark",), kind="domicile", endpoint=CHAT, body=None, mark=None):
    call = SimpleNamespace(endpoint=endpoint, model="small", body=body or {})
    request = SimpleNamespace(call=call, principal=SimpleNamespace(tenant="acme"))
    route = SimpleNamespace(backend=SimpleNamespace(kind=kind))
    return Routed(request, SimpleNamespace(allowed=SimpleNamespace(marking=marking)), route, (), 0, b"", mark)


class Keys:
    def __init__(self, error=None):
        self.error, self.asked = error, []

    def used(self, *place):
        self.asked.append(place)
        if self.error is not None:
            raise self.error
        return PeriodKey(place[1], b"k" * 32)


def received(characters=0, **watermarks):
    return ReceivedAnswer(watermarks={int(at[1:]): word for at, word in watermarks.items()}, characters_out=characters)


async def test_our_engine_gets_the_key_of_the_month_which_is_looked_up_once():
    now = [NOW]
    keys = Keys()
    marker = Marker(keys, now=lambda: now[0])
    for _ in range(2):
        assert (await marker.told(routed())).mark == Mark("2026-12", b"k" * 32)
    now[0] = datetime(2027, 1, 1, tzinfo=UTC)
    assert (await marker.told(routed())).mark.period == "2027-01"
    assert [place[:3] for place in keys.asked] == [("acme", "2026-12", "small"), ("acme", "2027-01", "small")]


@pytest.mark.parametrize(
    "changes", [{"marking": ()}, {"kind": "openai"}, {"endpoint": EMBEDDINGS}], ids=["no demand", "theirs", "vectors"]
)
async def test_no_key_is_given_where_none_is_due(changes):
    keys = Keys()
    assert (await Marker(keys, now=lambda: NOW).told(routed(**changes))).mark is None
    assert keys.asked == []


@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), KeyProviderError("away; try again")])
async def test_without_its_key_a_call_is_not_sent(error):
    with pytest.raises(BackendUnavailable):
        await Marker(Keys(error), now=lambda: NOW).told(routed())
    with pytest.raises(BackendUnavailable):
        await Marker(None, now=lambda: NOW).told(routed())


def test_an_engine_that_does_not_say_what_came_of_the_mark_has_failed():
    mark = Mark("2026-12", b"k" * 32)
    with pytest.raises(BackendFailed):
        Marker(None).confirm(routed(mark=mark), received())
    Marker(None).confirm(routed(mark=mark), received(_0="short"))
    Marker(None).confirm(routed(kind="openai"), received())


def test_of_several_choices_the_first_that_is_not_marked_counts():
    mark = Mark("2026-12", b"k" * 32)
    two, three = ({"n": n} for n in (2, 3))
    assert outcome(routed(mark=mark, body=two), received(_0="marked", _1="marked")) == "marked"
    assert outcome(routed(mark=mark, body=three), received(_0="marked", _2="low_entropy", _1="short")) == "short"
    assert outcome(routed(mark=mark), received()) is None, "nothing was said"
    assert outcome(routed(kind="openai"), received()) == "requested"
    assert outcome(routed(marking=()), received()) is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, {}),
        ({"n": None, "prompt": "the sea"}, {}),
        ({"n": 2}, {"_0": "marked"}),
        ({"n": 2}, {"_1": "short"}),
        ({"prompt": ["the sea", "the land"]}, {"_0": "marked"}),
        ({"prompt": [[1, 2], [3]], "n": 2}, {"_0": "marked", "_1": "marked", "_2": "marked"}),
    ],
)
def test_an_answer_that_broke_off_is_not_said_to_be_marked_nor_left_out(body, said):
    mark = Mark("2026-12", b"k" * 32)
    assert outcome(routed(mark=mark, body=body), received(characters=1, **said)) == "cut"
    assert outcome(routed(mark=mark, body=body, kind="domicile"), received()) is None
    whole = {f"_{at}": "marked" for at in range(len(said) + 1)}
    assert outcome(routed(mark=mark, body=body), received(characters=1, **whole)) == "marked"


def test_tokens_of_one_prompt_are_one_choice():
    mark = Mark("2026-12", b"k" * 32)
    assert outcome(routed(mark=mark, body={"prompt": [1, 2, 3]}), received(_0="marked")) == "marked"


def test_what_is_announced_before_the_answer():
    assert announced(routed()) == "demanded"
    assert announced(routed(kind="openai")) == "requested"
    assert announced(routed(marking=())) is None


@pytest.mark.parametrize("body", [{"temperature": 0}, {"temperature": 0.0}, {"temperature": 1e-6}, {"top_k": 1}])
@pytest.mark.parametrize("kind", ["domicile", "openai"])
def test_an_answer_with_nothing_to_draw_is_announced_as_greedy(body, kind):
    assert announced(routed(body=body, kind=kind)) == "greedy"


@pytest.mark.parametrize("body", [{"temperature": 1e-5}, {"temperature": None}, {"temperature": True}, {"top_k": 0}])
def test_any_other_is_not(body):
    assert announced(routed(body=body, kind="openai")) == "requested"


def test_no_representation_shows_a_key():
    assert "kkkk" not in repr(routed(mark=Mark("2026-12", b"k" * 32)))
