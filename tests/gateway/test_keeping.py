"""Content kept and forgotten, through the whole gateway: policy, value store, pack, erasure, and the bytes on disk."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.cli.app import app as audit_app
from gateway.evidence_pack.pack_inputs import gather
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.fakes.backend import FakeBackend, running
from tests.fakes.disk import bytes_under
from tests.fakes.lab import POLICY, chat, lab
from tests.fakes.vault import TOKEN, running_vault

KEEPING = POLICY.replace("content: none", "content: 'encrypted, 30d'")
ALICE, BOB = "alice@example.com", "bob@example.com"
QUESTION, ANSWER = "Does Zeppelin fly over Friedrichshafen?", "Zeppelin flies over Friedrichshafen at noon."
SHELL = CliRunner()


def keeping(made):
    made.tenant("acme", KEEPING)


async def audit(made, *words):
    line = [*map(str, words), "--data", str(made.data)]
    done = await asyncio.to_thread(SHELL.invoke, audit_app, line)
    assert done.exit_code == 0, done.output
    return done.stdout


async def asked(made, subject, question=QUESTION, **more):
    answer = await made.post(chat(question, **more), headers={"x-domicile-subject": subject} if subject else None)
    assert answer.status == 200, answer.body
    return answer


def on_disk(folder: Path):
    """Every byte of every file, write-ahead logs included."""
    return b"".join(bytes_under(folder).values())


def side_rows(made, query):
    with sqlite3.connect(made.data / "audit" / "side.db") as db:
        return db.execute(query).fetchall()


def kept(dsar):
    package = json.loads(dsar)
    return [
        (record["record"]["type"], {name: one["value"] for name, one in record["values"].items()})
        for record in package["records"]
    ]


async def test_what_a_policy_keeps_is_found_exported_erased_and_then_in_no_byte_on_disk(tmp_path):
    backend = FakeBackend(say=lambda body: ANSWER if QUESTION in str(body) else "The fog does.")
    async with lab(tmp_path, set_up=keeping, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        await asked(made, ALICE)
        await asked(made, ALICE, stream=True)
        await asked(made, BOB, question="Who watches the Zugspitze?")
        dsar = await audit(made, "dsar", "acme", "--subject", ALICE)
        intent, outcome, streamed_intent, streamed = kept(dsar)
        assert intent[0] == streamed_intent[0] == "inference.accepted"
        assert json.loads(intent[1]["input"])["messages"][0]["content"] == QUESTION
        assert intent[1]["subject"] == outcome[1]["subject"] == ALICE
        for kind, values in (outcome, streamed):
            assert kind == "inference.completed"
            assert values["output"][0]["content"] == ANSWER
        assert "Zugspitze" not in dsar

        everything = on_disk(made.data)
        for text in (ALICE, BOB, "Zeppelin", "Friedrichshafen", "Zugspitze"):
            assert text.encode() not in everything, f"{text} lies in clear"
        (traces,) = zip(*side_rows(made, "select ciphertext from value where seq = 0"), strict=True)
        assert all(bytes(trace) in everything for trace in traces)

        said = json.loads(await audit(made, "erase", "acme", "--subject", ALICE, "--yes", "--json"))
        assert said["certificate"]["records"] == 4
        after = on_disk(made.data)
        assert not any(bytes(trace) in after for trace in traces), "a ciphertext is still in a file"
        assert b"Zugspitze" not in after

        await made.signed()
        pack = tmp_path / "pack.zip"
        registers = tmp_path / "registers.json"
        registers.write_text(gather(made.data, "acme").model_dump_json())
        await audit(made, "export", "acme", "--output", pack, "--disclose", "--evidence", registers)
        assert "Friedrichshafen" not in pack_text(pack)
        assert "Zugspitze" in pack_text(pack), "what the other person said is still disclosed"
        await asked(made, ALICE, question="And today?")  # the gateway goes on, under a new key
    assert made.verify().ok
    checked = await audit(made, "verify", "--json")
    states = json.loads(checked)["private_values"]
    assert states.keys() == {"erased", "withheld"}
    with zipfile.ZipFile(pack) as archive:
        archive.extract("verify.py", tmp_path)
    done = subprocess.run([sys.executable, "-I", tmp_path / "verify.py", pack], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def pack_text(pack):
    with zipfile.ZipFile(pack) as archive:
        return "".join(archive.read(name).decode(errors="replace") for name in archive.namelist())


async def test_where_the_policy_keeps_no_content_nothing_is_kept_not_even_of_whom(tmp_path):
    async with lab(tmp_path) as made:
        await asked(made, ALICE)
        await asked(made, ALICE, stream=True)
        assert side_rows(made, "select count(*) from value") == [(0,)]
        assert side_rows(made, "select count(*) from data_key") == [(0,)]
        assert not any("commits" in event for event in made.events())
        assert ALICE.encode() not in on_disk(made.data)


async def test_a_project_that_keeps_nothing_under_a_tenant_that_does_keeps_nothing(tmp_path):
    tight = "policy: tight\nversion: 1\nretention: {content: none}\n"

    def set_up(made):
        made.tenant("acme", KEEPING)
        made.project("acme", "quiet", policy=tight)

    async with lab(tmp_path, set_up=set_up) as made:
        assert (await made.post(chat(QUESTION), key="acme/quiet")).status == 200
        assert side_rows(made, "select count(*) from value") == [(0,)]
        await asked(made, ALICE)
        assert side_rows(made, "select count(*) from value") == [(5,)]


async def test_what_is_kept_of_a_redacted_prompt_is_what_left_and_not_what_came(tmp_path):
    async with lab(tmp_path, set_up=keeping) as made:
        await asked(made, BOB, question="Write to carla@example.org")
        values = dict(kept(await audit(made, "dsar", "acme", "--subject", BOB)))
        assert "carla@example.org" not in json.dumps(values)
        sent = made.backends["acme-1"].bodies[0]
        assert json.loads(values["inference.accepted"]["input"]) == sent


async def test_of_a_stream_that_breaks_off_is_kept_what_was_said_until_then(tmp_path):
    backend = FakeBackend(say=ANSWER, pieces=4, die_after=2)
    async with lab(tmp_path, set_up=keeping, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        answer = await made.post(chat(QUESTION, stream=True), headers={"x-domicile-subject": ALICE})
        values = dict(kept(await audit(made, "dsar", "acme", "--subject", ALICE)))
        heard = values["inference.aborted"]["output"][0]["content"]
        assert 0 < len(heard) < len(ANSWER)
        assert heard == answer.text


async def test_a_refused_call_leaves_nothing_of_what_it_said(tmp_path):
    async with lab(tmp_path, set_up=keeping) as made:
        refused = await made.post(chat("my key is sk-proj-" + "a1B2" * 12), headers={"x-domicile-subject": ALICE})
        assert refused.status == 422
        assert side_rows(made, "select count(*) from value") == [(0,)]


@pytest.mark.parametrize("broken", ["drop table value", "drop table data_key"])
async def test_if_values_cannot_be_kept_nothing_is_forwarded(tmp_path, broken):
    async with lab(tmp_path, set_up=keeping) as made:
        side_rows(made, broken)
        answer = await made.post(chat(QUESTION))
        assert (answer.status, answer.error["code"]) == (503, "audit_unavailable")
        assert made.backends["acme-1"].bodies == []


async def test_a_caller_without_a_name_has_its_values_under_a_key_of_the_record(tmp_path):
    async with lab(tmp_path, set_up=keeping) as made:
        await asked(made, None)
        assert side_rows(made, "select count(*) from data_key where subject is null") == [(2,)]
        (accepted,) = (event for event in made.events() if event["type"] == "inference.accepted")
        assert set(accepted["commits"]) == {"input", "input_original"}


async def test_a_name_that_is_none_is_refused_before_anything_is_done(tmp_path):
    async with lab(tmp_path, set_up=keeping) as made:
        answer = await made.post(chat(QUESTION), headers={"x-domicile-subject": "x" * 600})
        assert (answer.status, answer.error["code"]) == (400, "invalid_subject")
        assert answer.error["param"] == "x-domicile-subject"
        assert made.types() == []
        assert made.backends["acme-1"].bodies == []


async def test_the_record_carries_the_callers_trace(tmp_path):
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with lab(tmp_path) as made:
        await made.post(chat(QUESTION), headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
        await made.post(chat(QUESTION), headers={"traceparent": "nonsense"})
        first, second = (event for event in made.events() if event["type"] == "inference.accepted")
        assert first["trace_id"] == trace
        assert "trace_id" not in second


async def test_with_the_master_key_in_vault_content_is_kept_and_a_sealed_vault_stops_new_tenants_only(tmp_path):
    def set_up(made):
        made.tenant("acme", KEEPING)
        made.tenant("globex", KEEPING)

    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(), "globex/eu-fr-par/globex-1": FakeBackend()}
    with running_vault() as vault:
        secrets = {
            "provider": "vault",
            "vault": {"address": vault.url, "token_file": token, "signing_key": "log", "retries": 0},
        }
        async with lab(tmp_path, set_up=set_up, backends=backends, secrets=secrets) as made:
            await asked(made, ALICE)
            vault.sealed = True
            await asked(made, ALICE)
            refused = await made.post(chat(QUESTION), key="globex/main")
            assert (refused.status, refused.error["code"]) == (503, "audit_unavailable")
            assert made.backends["globex-1"].bodies == []
            await asked(made, ALICE)
            vault.sealed = False
            assert (await made.post(chat(QUESTION), key="globex/main")).status == 200
        assert not list(made.data.rglob("root.key"))
        assert not list(made.data.rglob("signer.key"))


async def test_what_is_kept_is_what_left_also_for_a_server_that_takes_less(tmp_path):
    async with running(FakeBackend()) as backend:

        def set_up(made):
            made.tenant("acme", KEEPING + "priority: low\n")
            theirs = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-tgi")
            made.control.register_backend(
                theirs, url=backend.url, models=["small"], kind="openai", trust=Trust(plain=True)
            )

        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            await asked(made, BOB)
            values = dict(kept(await audit(made, "dsar", "acme", "--subject", BOB)))
    assert json.loads(values["inference.accepted"]["input"]) == backend.bodies[0] == chat(QUESTION)
