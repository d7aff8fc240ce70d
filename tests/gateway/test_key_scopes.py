"""What a key's own bounds do to a call, through the whole gateway: below the policy, on every way there is."""

import pytest
from pydantic import ValidationError

from gateway.records.control import Scopes
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import OPEN_POLICY, POLICY, chat, lab

FRANCE, GERMANY, AMERICA = "acme/eu-fr-par/acme-fr", "acme/eu-de-fra/acme-de", "acme/us-east/acme-us"


def bound(policy=POLICY, **scopes):
    """A tenant with one key, bound so."""

    def set_up(made):
        made.tenant("acme", policy)
        _, key = made.control.create_key("acme", "main", scopes=Scopes(**scopes))
        made.keys["bound"] = key.token

    return set_up


def backends(*places):
    return {place: FakeBackend() for place in places}


def asked(made):
    return {name: len(backend.bodies) for name, backend in made.backends.items()}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_for_one_region_is_answered_there_and_nowhere_else(tmp_path, stream):
    async with lab(tmp_path, set_up=bound(regions=("eu-de-fra",)), backends=backends(FRANCE, GERMANY)) as made:
        for number in range(6):
            answer = await made.post(chat(f"{number} bottles", stream=stream), key="bound")
            assert (answer.status, answer.headers["x-domicile-region"]) == (200, "eu-de-fra")
        assert asked(made) == {"acme-fr": 0, "acme-de": 6}
        accepted = [event for event in made.events() if event["type"] == "inference.accepted"]
        assert {(event["region"], event["inference_country"]) for event in accepted} == {("eu-de-fra", "DE")}
        for number in range(12):
            await made.post(chat(f"{number} glasses"))
        assert asked(made)["acme-fr"] > 0, "the tenant's other key goes where it likes"


async def test_when_its_region_is_down_it_is_not_answered_from_another(tmp_path):
    places = backends(FRANCE, GERMANY)
    async with lab(tmp_path, set_up=bound(regions=("eu-de-fra",)), backends=places) as made:
        made.backends["acme-de"].status, made.backends["acme-de"].error = 503, {"message": "no"}
        for _ in range(3):
            assert (await made.post(chat("hi"), key="bound")).status >= 500
        assert asked(made)["acme-fr"] == 0
        assert (await made.post(chat("hi"))).status in {200, 502, 503}


async def test_a_region_where_nothing_runs_is_a_refusal_with_its_reason_on_record(tmp_path):
    async with lab(tmp_path, set_up=bound(regions=("eu-de-fra",)), backends=backends(FRANCE)) as made:
        refused = await made.post(chat("hi"), key="bound")
        assert refused.status == 403
        assert refused.error["reasons"][0]["rule"] == "key.scope"
        denied = made.acts()[-1]
        assert (denied["type"], denied["decision"]["reasons"][0]["rule"]) == ("inference.denied", "key.scope")
        assert asked(made) == {"acme-fr": 0}


async def test_a_key_reaches_no_region_that_the_policy_forbids(tmp_path):
    set_up = bound(OPEN_POLICY, regions=("us-east",))
    async with lab(tmp_path, set_up=set_up, backends=backends(FRANCE, AMERICA)) as made:
        refused = await made.post(chat("hi"), key="bound")
        assert refused.status == 403
        assert asked(made) == {"acme-fr": 0, "acme-us": 0}


async def test_a_key_for_no_region_is_answered_nowhere(tmp_path):
    async with lab(tmp_path, set_up=bound(regions=()), backends=backends(FRANCE)) as made:
        assert (await made.post(chat("hi"), key="bound")).status == 403
        assert asked(made) == {"acme-fr": 0}


async def test_other_bounds_of_a_key_hold_too(tmp_path):
    set_up = bound(models=("small",), endpoints=("chat/completions",), networks=("127.0.0.0/8",))
    async with lab(tmp_path, set_up=set_up, backends=backends(FRANCE)) as made:
        assert (await made.post(chat("hi"), key="bound")).status == 200
        other = await made.post({"model": "small", "prompt": "hi"}, "/v1/completions", key="bound")
        assert other.status == 403
        assert len(made.backends["acme-fr"].bodies) == 1


@pytest.mark.parametrize(
    "wrong", [True, 0, 167772160, 1.5, None, "", "x", "10.0.0.1/8", "10.0.0.0/33", ["10.0.0.0", 8], {}]
)
def test_a_network_is_text_in_cidr_notation_and_nothing_that_can_be_read_as_one(wrong):
    with pytest.raises(ValidationError, match="CIDR notation") as refused:
        Scopes.model_validate({"networks": ["192.0.2.0/24", wrong]})
    assert refused.value.errors()[0]["loc"] == ("networks", 1)


def test_a_network_that_is_stored_is_read_again_as_it_was():
    scopes = Scopes.model_validate({"networks": ["192.0.2.0/24", "2001:db8::/32", "192.0.2.7"]})
    assert Scopes.model_validate(scopes.model_dump(mode="json")) == Scopes.model_validate(scopes.model_dump()) == scopes
