"""The health of the record over the API: states by size and by date, and who vouches from outside."""

import asyncio
import time
from base64 import b64encode

import pytest

from audit.events.privacy import LogRead
from audit.verification.selftest import selftest
from audit.witness.anchor import anchor
from audit.witness.anchor_attestations import AnchorAttestation

BASE = "/tenants/acme/record"


@pytest.fixture
def grown(acme, record):
    """Four records of acme, each two under a checkpoint of its own; the moment between them."""

    async def call(name):
        for _ in range(2):
            await record.record(LogRead(tenant="acme", actor="system", first=0, end=1, reason=name))

    asyncio.run(call("first"))
    time.sleep(0.005)
    moment = (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between := time.time())) + f".{int(between % 1 * 1000):03d}Z"
    )
    time.sleep(0.005)
    asyncio.run(call("second"))
    return moment


def test_a_date_means_the_last_state_signed_before_it(client, operator, grown):
    sizes = [one["size"] for one in client.get(BASE, headers=operator).json()["checkpoints"]]
    proof = client.get(f"{BASE}/consistency", params={"since": grown, "until": "2999"}, headers=operator).json()
    assert (proof["old"], proof["new"]) == (2, max(sizes)) and proof["new"] > 2
    same = client.get(f"{BASE}/consistency", params={"since": grown, "until": grown}, headers=operator).json()
    assert (same["old"], same["new"], same["proof"]) == (2, 2, [])


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"since": "2000"}, 404, "no checkpoint was signed by then"),
        ({"until": "2000"}, 404, "no checkpoint was signed by then"),
        ({"since": "2999", "until": "WHEN"}, 422, "the smaller one first"),
        ({"since": "2999", "old": 2}, 422, "old and since are both given"),
        ({"until": "2999", "new": 2}, 422, "new and until are both given"),
        ({"since": "2026-13"}, 422, "this is no moment"),
        ({"old": 5}, 404, "no checkpoint of that size"),
        ({"new": 10**9}, 404, "no checkpoint of that size"),
    ],
)
def test_states_that_there_are_not_are_refused_by_name(client, operator, grown, asked, status, said):
    params = {name: grown if value == "WHEN" else value for name, value in asked.items()}
    answer = client.get(f"{BASE}/consistency", params=params, headers=operator)
    assert answer.status_code == status and said in answer.json()["detail"], answer.text


def test_a_record_that_nobody_vouches_for_says_so_and_how_that_is_changed(client, operator, grown):
    found = client.get(f"{BASE}/outside", headers=operator).json()
    assert (found["anchored"], found["vouchers"], found["selftests"]) == (None, [], [])
    assert "audit.anchor_every_s" in found["why"]


def test_an_anchored_record_is_proven_and_selftests_are_listed_with_their_outcome(client, operator, grown, record):
    asyncio.run(anchor(record))
    asyncio.run(selftest(record, None))
    found = client.get(f"{BASE}/outside", headers=operator).json()
    assert (found["anchored"], found["why"]) == (4, "") and found["anchor_size"] >= 1
    assert found["selftests"] and all(one["passed"] and one["at"].endswith("Z") for one in found["selftests"])


def test_a_witness_is_listed_with_the_leaves_that_it_saw(client, operator, grown, record, app):
    asyncio.run(anchor(record))
    note = "log/_anchor\n7\n" + "A" * 43 + "=\n\n\u2014 witness.example " + cosignature() + "\n"
    app.state.context.packs.attestations = lambda: [AnchorAttestation(note)]
    voucher = client.get(f"{BASE}/outside", headers=operator).json()["vouchers"][0]
    assert (voucher["who"], voucher["size"], voucher["at"]) == ("witness.example", 7, "2001-09-09T01:46:40.000Z")


def cosignature():
    """Key id, time and 64 bytes, as a cosignature line has them."""
    return b64encode(b"\0" * 4 + (10**9).to_bytes(8, "big") + b"\0" * 64).decode()


def test_a_tenant_without_a_record_has_nothing_outside(client, operator, control, grown):
    control.create_tenant("fresh")
    found = client.get("/tenants/fresh/record/outside", headers=operator).json()
    assert found["anchored"] is None and found["why"]
    assert client.get("/tenants/fresh/record/consistency", headers=operator).status_code == 404
