"""What is in force at the moment of a connect governs that attempt, whatever was in force at the one before.

A backend holds the call, one kind of fact changes, the backend answers 503. In the real gateway, with its real store;
only time is moved by hand.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from gateway.identity.keys import parse_key
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import chat, lab

PLACES = {"FR": "acme/eu-fr-par/acme-fr", "DE": "acme/eu-de-fra/acme-de", "US": "acme/us-east/acme-us"}
NAMES = {place.split("/")[2]: country for country, place in PLACES.items()}
CANARY = "carl@example.org"
C5_ENDS = datetime(2027, 1, 1, tzinfo=UTC)  # the day after the last on which eu-de-fra is certified, in the catalogue


def last_of_a_call(made):
    """What is on record last of any call; the gateway's own chores, such as retention, add events at any time."""
    return [event for event in made.events() if event["type"].startswith(("inference", "routing"))][-1]


def policy(countries, version=1, more="", owner=None):
    said = ", ".join(countries)
    owned = f" operator: {{head_office: [{owner}]}}," if owner else ""
    return (
        f"policy: p\nversion: {version}\nresidency: {{process_in: [{said}], store_in: [{said}],{owned}"
        f" transfer_basis: [intra_eea, scc], subprocessors: [{said}]}}\n{more}"
    )


@dataclass
class Holding(FakeBackend):
    """Runs `while_held` when the first call of all has arrived, then fails in the way `fails` says."""

    shared: dict = field(default_factory=dict)

    async def generate(self, request):
        if self.shared.get("over"):
            return await super().generate(request)
        self.shared["over"] = True
        self.bodies.append(await request.json())
        self.shared["first"] = self
        await self.shared["while_held"]()
        if self.shared.get("closes"):
            request.transport.close()
        return web.json_response({"error": {"message": "busy"}}, status=503)


async def held(tmp_path, change, *, before=None, closes=False, stream=False, expires_at=None, backends=None):
    """One call, held by the backend that got it first while `change(made, first country)` is made. Gives the answer,
    the lab, that country and the countries of those called after it."""
    shared = {"closes": closes}
    fakes = {place: Holding(shared=shared) for place in backends or PLACES.values()}

    def set_up(made):
        made.tenant("acme", before or policy(NAMES.values()))
        if expires_at is not None:
            _, key = made.control.create_key("acme", "main", expires_at=expires_at)
            made.keys["acme/main"] = key.token

    async with lab(tmp_path, set_up=set_up, backends=fakes) as made:

        async def while_held():
            first = next(name for name, fake in made.backends.items() if fake is shared["first"])
            change(made, NAMES[first])
            await made.gateway.directory._check()

        shared["while_held"] = while_held
        answer = await made.post(chat(f"write to {CANARY}", stream=stream))
        first = shared["first"]
        later = [NAMES[name] for name, fake in made.backends.items() if fake is not first and fake.bodies]
        named = next(NAMES[name] for name, fake in made.backends.items() if fake is first)
        return answer, made, named, later


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("level", ["tenant", "project", "operator"])
async def test_a_policy_narrowed_during_one_attempt_governs_the_next(tmp_path, level, stream):
    def narrow(made, first):
        where = {"tenant": ("acme", None), "project": ("acme", "main"), "operator": (None, None)}[level]
        made.control.activate_policy(where[0], policy(NAMES.values(), 2, owner="IT"), project=where[1])

    answer, made, _, later = await held(tmp_path, narrow, stream=stream)
    assert (answer.status, answer.error["code"], later) == (403, "residency_denied", [])
    outcome = last_of_a_call(made)
    assert (outcome["type"], outcome["reason"]) == ("inference.aborted", "residency_denied")
    assert {reason["candidate"] for reason in outcome["decision"]["reasons"]} == NAMES.keys()
    made.verify()


async def test_a_policy_narrowed_to_the_backend_that_failed_leaves_none_to_try(tmp_path):
    answer, _, _, later = await held(
        tmp_path, lambda made, first: made.control.activate_policy("acme", policy([first], 2))
    )
    assert (answer.status, answer.error["code"], later) == (503, "backend_unavailable", [])


@pytest.mark.parametrize("closes", [False, True])
async def test_a_policy_narrowed_to_another_backend_leaves_that_one_as_the_only_next(tmp_path, closes):
    left = []

    def narrow(made, first):
        left.append(next(country for country in ("FR", "DE") if country != first))
        made.control.activate_policy("acme", policy(left, 2))

    answer, made, _, later = await held(tmp_path, narrow, closes=closes)
    assert (answer.status, later) == (200, left)
    (moved,) = [event for event in made.events() if event["type"] == "routing.decision"]
    assert (moved["policy_version"], moved["decision"]["outcome"]) == ("2", "allow")
    # A kept connection that closes is opened again, to the same backend: that connect is checked as well.
    assert moved["reason"] in {"backend_unavailable", *(["decision_changed"] if closes else [])}
    assert answer.headers["x-domicile-decision"] == "allow p@2"


async def test_without_a_change_the_next_attempt_follows_the_decision_on_record(tmp_path):
    answer, made, _, later = await held(tmp_path, lambda made, first: None)
    assert (answer.status, len(later)) == (200, 1)
    (moved,) = [event for event in made.events() if event["type"] == "routing.decision"]
    assert "decision" not in moved


async def test_a_change_of_another_tenant_changes_nothing_for_the_next_attempt(tmp_path):
    def change(made, first):
        made.control.create_tenant("globex")

    answer, made, _, later = await held(tmp_path, change)
    assert (answer.status, len(later)) == (200, 1)
    (moved,) = [event for event in made.events() if event["type"] == "routing.decision"]
    assert "decision" not in moved


async def test_a_redaction_plan_that_changed_is_applied_before_the_next_attempt_and_is_on_record(tmp_path):
    more = "redaction: {input: {email: mask}}\nretention: {metadata: 12mo, content: none}\n"

    def change(made, first):
        made.control.activate_policy("acme", policy(NAMES.values(), 2, more))

    answer, made, first, later = await held(tmp_path, change)
    assert (answer.status, len(later)) == (200, 1)
    bodies = {NAMES[name]: fake.received for name, fake in made.backends.items()}
    assert CANARY in bodies[first]
    assert CANARY not in bodies[later[0]] and "[EMAIL]" in bodies[later[0]]
    (moved,) = [event for event in made.events() if event["type"] == "routing.decision"]
    assert moved["redaction"]["counts_by_type"] == {"email": 1}


async def test_a_class_of_data_that_is_blocked_meanwhile_goes_to_no_further_backend(tmp_path):
    def change(made, first):
        made.control.activate_policy("acme", policy(NAMES.values(), 2, "redaction: {input: {email: block}}\n"))

    answer, made, _, later = await held(tmp_path, change)
    assert (answer.status, answer.error["code"], later) == (422, "redaction_blocked", [])
    assert last_of_a_call(made)["decision"]["outcome"] == "deny"


async def test_content_that_a_new_policy_keeps_is_kept_as_it_left_for_the_next_backend(tmp_path):
    more = 'redaction: {input: {email: mask}}\nretention: {metadata: 12mo, content: "encrypted, 30d"}\n'

    def change(made, first):
        made.control.activate_policy("acme", policy(NAMES.values(), 2, more))

    _, made, _, _ = await held(tmp_path, change)
    (accepted,) = [event for event in made.events() if event["type"] == "inference.accepted"]
    (moved,) = [event for event in made.events() if event["type"] == "routing.decision"]
    assert "commits" not in accepted
    assert "input" in moved["commits"]


def revoke_key(made, first):
    made.control.revoke_key("acme", parse_key(made.key()).id)


GONE = {
    "the key is revoked": (revoke_key, 401, "revoked_api_key"),
    "the project is revoked": (lambda made, first: made.control.revoke_project("acme", "main"), 401, "revoked_api_key"),
    "the tenant is revoked": (lambda made, first: made.control.revoke_tenant("acme"), 401, "revoked_api_key"),
    "a person stops the project": (
        lambda made, first: made.control.stop("acme", project="main", reason="malfunction"), 403, "oversight.stopped",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", GONE)
async def test_whoever_may_not_call_any_more_reaches_no_further_backend(tmp_path, kind):
    change, status, code = GONE[kind]
    answer, made, _, later = await held(tmp_path, change)
    assert (answer.status, answer.error["code"], later) == (status, code, [])
    assert last_of_a_call(made)["type"] == "inference.aborted"


async def test_a_key_that_expires_while_a_backend_holds_the_call_reaches_no_further_one(tmp_path, monkeypatch):
    ends = datetime.now(UTC) + timedelta(hours=1)

    def expire(made, first):
        monkeypatch.setattr(made.gateway.directory, "_now", lambda: ends + timedelta(seconds=1))

    answer, _, _, later = await held(tmp_path, expire, expires_at=ends)
    assert (answer.status, answer.error["code"], later) == (401, "expired_api_key", [])


async def test_a_backend_that_is_revoked_meanwhile_is_not_tried_next(tmp_path):
    def revoke(made, first):
        made.control.revoke_backend("acme", PLACES["DE" if first == "FR" else "FR"].split("/")[2])

    answer, _, first, later = await held(tmp_path, revoke, backends=[PLACES["FR"], PLACES["DE"]])
    assert (answer.status, later) == (503, [])
    assert first in ("FR", "DE")


def at(made, monkeypatch, moment):
    """Moves the clock that decisions are made by."""
    enforcement = made.gateway.app._pipeline.enforcement
    monkeypatch.setattr(enforcement, "_now", lambda: moment)
    monkeypatch.setattr(enforcement._registry, "_clock", moment.timestamp)


async def test_hours_that_end_while_a_backend_holds_the_call_end_it(tmp_path, monkeypatch):
    open_until = 'hours: {days: [mon, tue, wed, thu, fri, sat, sun], from: "00:00", until: "23:59", zone: UTC}\n'

    def close(made, first):
        at(made, monkeypatch, datetime.now(UTC).replace(hour=23, minute=59, second=30) + timedelta(days=1))

    answer, made, _, later = await held(tmp_path, close, before=policy(NAMES.values(), 1, open_until))
    assert (answer.status, answer.error["code"], later) == (403, "hours", [])
    assert last_of_a_call(made)["decision"]["reasons"][0]["rule"] == "hours"


@pytest.mark.parametrize("ended", [False, True])
async def test_a_certificate_that_ends_at_midnight_excludes_its_region_from_the_next_attempt(
    tmp_path, monkeypatch, ended
):
    demand = "backend: {certifications: [C5]}\n"
    twins = ["acme/eu-de-fra/acme-de", "acme/eu-de-fra/acme-de2"]
    monkeypatch.setitem(NAMES, "acme-de2", "DE")

    def pass_midnight(made, first):
        at(made, monkeypatch, C5_ENDS if ended else C5_ENDS - timedelta(seconds=1))

    answer, _, _, later = await held(tmp_path, pass_midnight, before=policy(["DE"], 1, demand), backends=twins)
    assert (answer.status, len(later)) == ((403, 0) if ended else (200, 1))


async def test_a_change_between_the_record_and_the_connect_is_seen_before_a_byte_leaves(tmp_path, monkeypatch):
    """The write-ahead takes milliseconds, a handshake longer: the check is made after both."""
    fakes = {PLACES["FR"]: FakeBackend(), PLACES["DE"]: FakeBackend()}
    changed = []

    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", policy(["FR", "DE"])), backends=fakes) as made:
        recorder = made.gateway.app._pipeline.recorder
        accepted = recorder.accepted

        async def slow(routed, before):
            result = await accepted(routed, before)
            if not changed:
                changed.append("DE" if NAMES[routed.route.backend.id] == "FR" else "FR")
                made.control.activate_policy("acme", policy(changed, 2))
                await made.gateway.directory._check()
            return result

        monkeypatch.setattr(type(recorder), "accepted", lambda self, routed, before: slow(routed, before))
        answer = await made.post(chat("hi"))
        assert answer.status == 200
        assert [NAMES[name] for name, fake in made.backends.items() if fake.bodies] == changed
        kinds = [event["type"] for event in made.events() if event["type"].startswith(("inference", "routing"))]
        assert kinds == ["inference.accepted", "routing.decision", "inference.completed"]
        assert [e["reason"] for e in made.events() if e["type"] == "routing.decision"] == ["decision_changed"]
