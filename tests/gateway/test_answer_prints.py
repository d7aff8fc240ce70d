"""Answers are found again by their text: whole, streamed, filtered, in any API; by their tenant alone."""

import asyncio
import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from sqlmodel import select
from typer.testing import CliRunner

from audit.keys.owner_keys import FileKeyProvider
from audit.log.answer_prints import prints_of, written
from gateway.cli.app import app
from gateway.database.tables.marks import AnswerSaltRow
from gateway.installation.installation import Installation
from gateway.installation.rotation import renew
from gateway.store.marks import AnswerSalts
from tests.audit.log.test_answer_prints import edited, prose
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab

FOUND = POLICY.replace("{art50_notice: header}", "{art50_notice: header, marking: [record]}")
PERIOD = datetime.now(UTC).strftime("%Y-%m")


def say(body):
    """An answer of its own for each prompt, with an address that the output filter masks."""
    asked = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
    if asked == "short":
        return "Yes."
    return f"{prose(asked, 120)} Write to someone.else@example.org about this. {prose(asked + '2', 120)}"


def set_up(made):
    for tenant, policy in (("acme", FOUND), ("globex", FOUND), ("initech", POLICY)):
        made.tenant(tenant, policy)
        for role in ("dpo", "auditor"):
            person = made.control.create_person(tenant, "Ada", [role])
            _, token = made.control.create_token(tenant, person.id, expires_at=datetime.now(UTC) + timedelta(days=1))
            made.keys[f"{tenant}-{role}"] = token.token


PLACES = {f"{tenant}/eu-fr-par/{tenant}-1": tenant for tenant in ("acme", "globex", "initech")}


def run(made, *words):
    return CliRunner().invoke(app, [*words, "--data", str(made.data), "--json"], env={"COLUMNS": "200"})


def from_another_host(made, home, *words):
    """A command of the tenant's DPO on another host, over the admin API."""
    environment = {"DOMICILE_URL": made.base, "XDG_CONFIG_HOME": str(home), "COLUMNS": "200"}
    login = ["login", "--url", made.base, "--token-file", "-"]
    said = CliRunner().invoke(app, login, input=made.key("acme-dpo"), env=environment)
    assert said.exit_code == 0, said.output
    return CliRunner().invoke(app, list(words), env=environment)


async def test_what_the_client_received_is_found_whole_streamed_and_in_another_api(tmp_path):
    async with lab(
        tmp_path, set_up=set_up, backends={place: FakeBackend(say=say, pieces=40) for place in PLACES}
    ) as made:

        async def search(text, tenant="acme", key=None, **body):
            asked = {"text": text, "reason": "complaint", **body}
            headers = {"content-type": "application/json"}
            path = f"/admin/v1/tenants/{tenant}/answers/find"
            return await made.post(asked, path, key=key or f"{tenant}-dpo", headers=headers)

        whole = await made.post(chat("whole"))
        stream = await made.post(chat("stream", stream=True))
        plain = await made.post({"model": "small", "prompt": "plain"}, "/v1/completions")
        message = {"model": "small", "max_tokens": 9, "messages": [{"role": "user", "content": "message"}]}
        other_api = await made.post(message, "/v1/messages")
        streamed_api = await made.post(
            {**message, "stream": True, "messages": [{"role": "user", "content": "events"}]}, "/v1/messages"
        )
        short = await made.post(chat("short"))
        other = await made.post(chat("whole"), key="globex/main")
        without = await made.post(chat("whole"), key="initech/main")
        heads = [one.headers.get("x-domicile-fingerprint") for one in (whole, stream, plain, other_api, short, without)]
        assert heads == ["stored", "demanded", "stored", "stored", "short", None]
        assert "someone.else" not in whole.text + stream.text, "the output filter masks it"

        for answer, text in (
            (whole, whole.text), (stream, stream.text), (plain, plain.text),
            (other_api, other_api.json["content"][0]["text"]),
            (streamed_api, say({"prompt": "events"})),
        ):  # fmt: skip
            for changed in (text, edited(text, 0.1), " ".join(text[300:900].split())):
                found = (await search(changed)).json
                assert (found["verdict"], found["matches"]) == ("found", 1), found
                (one,) = found["answers"]
                assert (one["request_id"], one["project"], one["model"]) == (
                    answer.headers["x-request-id"], "main", "small",
                )  # fmt: skip
                assert one["chance"] < 1e-12 and one["common"] >= 3
        receipt = whole.headers["x-domicile-receipt"]
        assert (await search(whole.text)).json["answers"][0]["receipt"] == receipt
        elsewhere = (await search(whole.text, "globex")).json
        assert elsewhere["answers"][0]["request_id"] == other.headers["x-request-id"]
        assert (await search(whole.text, "initech")).json["verdict"] == "not_found"
        assert (await search(whole.text, until="2020-01-01T00:00:00Z")).json["verdict"] == "not_found"
        bounded = (await search(whole.text, since="2020-01", until="2100-01-01T00:00:00Z")).json
        assert (bounded["matches"], bounded["first"]) == (1, 0)
        assert (await search(whole.text, since="yesterday")).status == 422
        assert (await search("yes")).json["verdict"] == "too_short"
        assert (await search(whole.text, key="acme-auditor")).status == 403
        assert (await search(whole.text, key="globex-dpo")).status == 404
        assert (await search(whole.text, key="acme/main")).status == 401
        assert (await search(whole.text, reason="because I want to")).status == 422
        events = made.events()
        prints = {event["request_id"]: event["answer_prints"] for event in events if "answer_prints" in event}
        assert {one["period"] for one in prints.values()} == {PERIOD}
        installation = Installation.open(made.data)
        with closing(installation.database()) as database:
            (salt,) = await asyncio.to_thread(AnswerSalts(database, installation.keys).all, "acme")
        for answer in (whole, stream):
            exact = written(prints_of(salt.key, [answer.text])[0])
            assert prints[answer.headers["x-request-id"]]["prints"] == exact, (
                "of what the client received, to the letter"
            )
        assert prints[short.headers["x-request-id"]] == {
            "letters": 3, "period": PERIOD, "scheme": "shingles-1", "state": "short",
        }  # fmt: skip
        ours = {
            one for said in (event.get("answer_prints") for event in events) if said for one in [said.get("prints")]
        }
        theirs = {e["answer_prints"]["prints"] for e in made.events("globex") if "answer_prints" in e}
        assert not ours & theirs, "equal texts of two tenants have nothing in common"
        assert not any("answer_prints" in event for event in made.events("initech"))
        searches = [event for event in events if event["type"] == "content.answer_searched"]
        assert searches[0]["reason"] == "complaint" and searches[0]["actor"].startswith("key:")
        assert whole.text[:20] not in json.dumps(events)
        file = tmp_path / "text.txt"
        file.write_text(edited(stream.text, 0.1))
        asked = ["audit", "find-answer", "acme", str(file), "--reason", "complaint"]
        beside = await asyncio.to_thread(run, made, *asked)
        words = await asyncio.to_thread(CliRunner().invoke, app, [*asked, "--data", str(made.data)])
        over_the_api = await asyncio.to_thread(
            from_another_host, made, tmp_path / "home", *asked, "--json", "--since", "2020"
        )
        early = await asyncio.to_thread(run, made, *asked, "--until", "2020-01")
        assert (early.exit_code, json.loads(early.stdout)["compared"]) == (1, 0), early.output
        within = await asyncio.to_thread(run, made, *asked, "--since", "2020", "--until", "2100")
        assert (within.exit_code, json.loads(within.stdout)["matches"]) == (0, 1), within.output
        never = await asyncio.to_thread(run, made, *asked, "--since", "soon")
        assert never.exit_code == 2 and "--since 'soon' is no moment" in never.stderr
        tries = [(await search("yes")).status for _ in range(57)]
        assert tries[-1] == 409, "at most 60 an hour"
        assert (await search("yes", "globex")).status == 200, "of one tenant"
    assert json.loads(beside.stdout)["answers"][0]["request_id"] == stream.headers["x-request-id"], beside.output
    assert over_the_api.exit_code == 0, over_the_api.output
    ours, theirs = json.loads(beside.stdout), json.loads(over_the_api.stdout)
    assert theirs["end"] > ours["end"], "the search before is on record meanwhile"
    assert {**theirs, "end": 0} == {**ours, "end": 0}, "the same over the API"
    assert words.exit_code == 0 and stream.headers["x-request-id"] in words.output
    await after_it_stopped(made, asked, file)


async def after_it_stopped(made, asked, file):
    """A month's salt is destroyed, a key renewed; both are seen by the next command."""
    installation = Installation.open(made.data)
    with closing(installation.database()) as database:
        generation, wrapped = await asyncio.to_thread(renew, installation, "acme", lambda event: None, "cli")
        assert generation == 2 and wrapped >= 1
        assert (await asyncio.to_thread(run, made, *asked)).exit_code == 0, "found after the key was renewed"
        now = await asyncio.to_thread(run, made, "mark", "delete", "acme", PERIOD, "--reason", "retention", "--yes")
        assert now.exit_code == 1 and "still come in" in now.stderr
        with database.write() as session:
            row = session.exec(select(AnswerSaltRow).where(AnswerSaltRow.tenant == "acme")).one()
            session.add(AnswerSaltRow(tenant="acme", period="2026-01", wrapped=row.wrapped, created_at=row.created_at))
        listed = json.loads((await asyncio.to_thread(run, made, "mark", "list", "acme")).stdout)
        assert [(one["period"], one["fingerprints"]) for one in listed] == [(PERIOD, True), ("2026-01", True)]
        for month, code in (("2026-01", 0), ("2026-01", 1), ("2025-12", 1)):
            gone = await asyncio.to_thread(run, made, "mark", "delete", "acme", month, "--reason", "retention", "--yes")
            assert gone.exit_code == code, gone.output
        with database.write() as session:
            session.delete(session.exec(select(AnswerSaltRow).where(AnswerSaltRow.tenant == "acme")).one())
    none = await asyncio.to_thread(run, made, *asked)
    assert (none.exit_code, json.loads(none.stdout)["unsearched_periods"]) == (2, [PERIOD])
    file.write_bytes(b"\xff\xfe")
    assert (await asyncio.to_thread(run, made, *asked)).exit_code == 2
    assert [e["period"] for e in made.events() if e["type"] == "content.answer_salt_destroyed"] == ["2026-01"]
    assert made.verify().ok


async def test_without_its_salt_no_answer_is_given(tmp_path, monkeypatch):
    async with lab(tmp_path, set_up=set_up, backends={place: FakeBackend(say=say) for place in PLACES}) as made:
        monkeypatch.setattr(FileKeyProvider, "unwrap", broken)
        answer = await made.post(chat("whole"))
        assert answer.status == 503, answer.body
        assert made.backends["acme-1"].bodies == [], "nothing was sent"
        assert (await made.post(chat("whole"), key="initech/main")).status == 200
    assert prose("whole")[:20] not in answer.body.decode()


def broken(self, tenant, wrapped):
    from audit.errors import KeyProviderError

    raise KeyProviderError("the key provider is away; try again")


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_client_had_of_a_broken_answer_is_found_too(tmp_path, stream):
    backend = FakeBackend(say=say, pieces=40, die_after=30)
    async with lab(tmp_path, set_up=set_up, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        if not stream:
            backend.die_after, backend.status, backend.error = None, 500, {"message": "x"}
        await made.post(chat("broken", stream=stream))
        aborted = [event for event in made.events() if event["type"] == "inference.aborted"]
    assert {event["answer_prints"]["state"] for event in aborted} == {"stored" if stream else "no_text"}
