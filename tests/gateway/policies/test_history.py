"""Which policy decided a call is told from the versions that were activated, and holds in a pack of real calls."""

import json
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from audit.incidents.pack_inputs import OPERATOR_SCOPE
from gateway.policies.history import rulings
from gateway.records.control import PolicyVersionRecord
from policy.decision.policy_identity import identity_of
from policy.document.document import load_document
from tests.fakes.lab import POLICY, chat, lab

START = datetime(2026, 3, 1, tzinfo=UTC)
ABOVE = "policy: house\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"
TIGHTER = "policy: hr\nversion: 1\nresidency: {process_in: [FR], store_in: [FR]}\n"


def version(number, days, document=POLICY, project=None, tenant="acme"):
    return PolicyVersionRecord(
        cell="eu-1",
        created_at=START + timedelta(days=days),
        tenant=tenant,
        project=project,
        number=number,
        sha256=sha256(document.encode()).hexdigest(),
        document=document,
        active=True,
        activated_by="cli",
    )


def made_of(found):
    return {tuple((part.scope, part.number) for part in each.made_of) for each in found}


def test_every_combination_that_was_in_force_is_there_and_no_other():
    own = [version(1, 1), version(2, 5), version(1, 3, TIGHTER, "hr")]
    above = [version(1, 4, ABOVE, tenant=None)]
    assert made_of(rulings(above, own)) == {
        (("", 1),),
        (("", 1), ("hr", 1)),
        ((OPERATOR_SCOPE, 1), ("", 1)),
        ((OPERATOR_SCOPE, 1), ("", 1), ("hr", 1)),
        ((OPERATOR_SCOPE, 1), ("", 2)),
        ((OPERATOR_SCOPE, 1), ("", 2), ("hr", 1)),
    }


def test_before_a_tenant_has_a_policy_nothing_is_in_force():
    assert rulings([version(1, 1, ABOVE, tenant=None)], []) == ()
    (found,) = rulings([version(1, 1, ABOVE, tenant=None)], [version(1, 2)])
    assert made_of([found]) == {((OPERATOR_SCOPE, 1), ("", 1))}


def test_each_is_named_by_the_hash_that_its_calls_carry():
    (found,) = rulings([], [version(1, 1)])
    assert found.policy_hash == identity_of(load_document(POLICY)).hash == sha256(found.canonical.encode()).hexdigest()


def test_a_document_that_does_not_read_any_more_is_left_out():
    assert rulings([], [version(1, 1, "policy: [")]) == ()
    assert made_of(rulings([], [version(1, 1, "policy: ["), version(2, 2)])) == {(("", 2),)}


def set_up(made):
    made.control.create_tenant("acme")
    made.control.activate_policy("acme", POLICY)
    made.project("acme", "main")
    made.project("acme", "hr", policy=TIGHTER, data_classes=["hr"])


async def test_calls_of_every_level_and_version_are_found_again_in_a_pack(tmp_path):
    async with lab(tmp_path, set_up=set_up) as made:
        for policy in (POLICY, POLICY.replace("version: 1", "version: 2") + "limits: {rpm: 600}\n"):
            made.control.activate_policy("acme", policy)
            await made.taken_over()
            for key in ("acme/main", "acme/hr"):
                assert (await made.post(chat("hi"), key=key)).status == 200
        made.control.activate_policy(None, ABOVE)
        await made.taken_over()
        for key in ("acme/main", "acme/hr"):
            assert (await made.post(chat("hi"), key=key)).status == 200
        hashes = {event["policy_hash"] for event in made.events() if event["type"] == "inference.accepted"}
        assert len(hashes) == 6
    pack, data = tmp_path / "pack.zip", tmp_path / "data"
    words = ["audit", "export", "acme", "--data", data, "--output", pack, "--json"]
    done = subprocess.run([sys.executable, "-m", "gateway", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["policies_unknown"] == 0
    with zipfile.ZipFile(pack) as archive:
        archive.extract("verify.py", tmp_path)
    words = [sys.executable, "-I", tmp_path / "verify.py", pack, "--json"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert json.loads(done.stdout)["findings"] == []
