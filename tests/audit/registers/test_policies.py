"""Each call's policy is in its pack and was in force then: looked up by verify.py, and tampered with."""

import json
import time
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from audit.events.event import AdminChanged, Decision, InferenceDenied
from audit.incidents.pack_inputs import OPERATOR_SCOPE, Evidence, Part, Policy, Ruling
from tests.audit.conftest import Home, accepted, completed
from tests.audit.pack.test_export import Files, make, rewritten, sentences, settled, verify

NOW = datetime.now(UTC)


def canonical(*parts: str) -> str:
    return "+".join(f"<{part}>" for part in parts)


def version(number: int, at: datetime, scope: str = "") -> Policy:
    text = f"policy: {scope or 'acme'}\nversion: {number}\n"
    digest = sha256(text.encode()).hexdigest()
    stamp = f"{at:%Y-%m-%dT%H:%M:%S}.000Z"
    return Policy(
        scope=scope, number=number, sha256=digest, text=text, activated_by="p", activated_at=stamp, active=True
    )


def ruling(*parts: Policy, text: bool = True) -> Ruling:
    said = canonical(*(f"{part.scope}{part.number}" for part in parts))
    return Ruling(
        policy_hash=sha256(said.encode()).hexdigest(),
        policy_id="acme",
        policy_version=str(parts[-1].number),
        canonical=said if text else "",
        made_of=tuple(Part(scope=part.scope, number=part.number, sha256=part.sha256) for part in parts),
    )


def activated(policy: Policy, made: Ruling) -> AdminChanged:
    detail = {"number": str(policy.number), "sha256": policy.sha256}
    detail |= {"policy_id": made.policy_id, "policy_version": made.policy_version, "policy_hash": made.policy_hash}
    return AdminChanged(
        type="admin.policy.activated",
        tenant="acme",
        actor="cli",
        target=policy.scope or "acme",
        project=policy.scope or None,
        epoch=1,
        detail=detail,
    )


def named(made: Ruling) -> dict[str, Any]:
    return {"policy_id": made.policy_id, "policy_version": made.policy_version, "policy_hash": made.policy_hash}


async def call(home: Home, made: Ruling, **more: object) -> None:
    async with home.context() as context:
        request = f"r{len(home.events('acme')) if home.path.exists() else 0}-{more}"
        await context.record(accepted(request, **named(made), **more))
        await context.record(completed(request))
        await settled(home)


OLD, NEW = version(1, NOW - timedelta(days=40)), version(2, NOW)
OLD_RULING, NEW_RULING = ruling(OLD), ruling(NEW)
KNOWN = Evidence(policies=(OLD, NEW), rulings=(OLD_RULING, NEW_RULING))


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records have the time at which they are made, which may be long after this module was read."""
    now = datetime.now(UTC)
    old, new = version(1, now - timedelta(days=40)), version(2, now)
    known = Evidence(policies=(old, new), rulings=(OLD_RULING, NEW_RULING))
    for name, value in {"NOW": now, "OLD": old, "NEW": new, "KNOWN": known}.items():
        monkeypatch.setitem(globals(), name, value)


@pytest.fixture
async def pack(home: Home, tmp_path: Path) -> Path:
    """A pack of one call and one refusal under the version that came into force just before them."""
    async with home.context() as context:
        await context.record(activated(NEW, NEW_RULING))
        await context.record(accepted("a", **named(NEW_RULING)))
        await context.record(completed("a"))
        no = {"request_id": "b", "key_id": "k", "project": "support", "endpoint": "/v1/x", "stream": False}
        no |= {"tenant": "acme", "model_requested": "m", "status": 403, **named(NEW_RULING)}
        await context.record(InferenceDenied.model_validate({**no, "decision": Decision(outcome="deny")}))
        await settled(home)
    await make(home, tmp_path / "pack.zip", evidence=KNOWN)
    return tmp_path / "pack.zip"


def history(files: Files) -> Any:
    return json.loads(files["policy_history.json"])


def put(files: Files, name: str, value: Any) -> None:
    files[name] = json.dumps(value).encode()


async def test_a_call_whose_policy_is_in_the_pack_and_was_in_force_passes(home: Home, pack: Path) -> None:
    code, report = verify(pack, "--key", home.key)
    assert (code, report["findings"]) == (0, [])
    assert any(note.endswith("register says: version 1 of the tenant's policy") for note in report["notes"])
    with zipfile.ZipFile(pack) as archive:
        told = json.loads(archive.read("policy_history.json"))
        page = archive.read("README.html").decode()
    assert NEW_RULING.policy_hash[:16] in page
    assert [(one["number"], one["records"]) for one in told] == [(1, []), (2, [0])]


def remove_from_history(files: Files) -> None:
    put(files, "policy_history.json", history(files)[:1])


def remove_the_ruling(files: Files) -> None:
    put(files, "policies_in_force.json", json.loads(files["policies_in_force.json"])[:1])


def remove_the_history(files: Files) -> None:
    put(files, "policy_history.json", [])
    put(files, "policies_in_force.json", [])


def change_the_text(files: Files) -> None:
    told = history(files)
    told[1]["text"] += "residency: {process_in: any}\n"
    put(files, "policy_history.json", told)


def change_text_and_digest(files: Files) -> None:
    told, made = history(files), json.loads(files["policies_in_force.json"])
    told[1]["text"] += "# a word\n"
    told[1]["sha256"] = made[1]["made_of"][0]["sha256"] = sha256(told[1]["text"].encode()).hexdigest()
    put(files, "policy_history.json", told)
    put(files, "policies_in_force.json", made)


def change_the_canonical_text(files: Files) -> None:
    made = json.loads(files["policies_in_force.json"])
    made[1]["canonical"] += " "
    put(files, "policies_in_force.json", made)


def strip_the_canonical_text_of_what_no_record_announced(files: Files) -> None:
    made = json.loads(files["policies_in_force.json"])
    made[0]["canonical"] = ""
    put(files, "policies_in_force.json", made)


def rename(files: Files) -> None:
    made = json.loads(files["policies_in_force.json"])
    made[1]["policy_version"] = "9"
    put(files, "policies_in_force.json", made)


def move(files: Files, days: int) -> None:
    told = history(files)
    told[1]["activated_at"] = told[0]["in_force_until"] = f"{NOW + timedelta(days=days):%Y-%m-%dT%H:%M:%S}.000Z"
    put(files, "policy_history.json", told)


def move_later(files: Files) -> None:
    move(files, 3)


def move_earlier(files: Files) -> None:
    move(files, -3)


def move_before_the_one_it_replaced(files: Files) -> None:
    move(files, -90)


def end_otherwise(files: Files) -> None:
    told = history(files)
    told[0]["in_force_until"] = ""
    put(files, "policy_history.json", told)


def put_a_version_in_twice(files: Files) -> None:
    put(files, "policy_history.json", [*history(files), history(files)[1]])


def point_at_the_older_version(files: Files) -> None:
    made = json.loads(files["policies_in_force.json"])
    made[1]["made_of"] = made[0]["made_of"]
    put(files, "policies_in_force.json", made)


def spoil_the_form(files: Files) -> None:
    files["policies_in_force.json"] = b'[{"policy_hash": 3}, 4]'


def take_the_file_away(files: Files) -> None:
    del files["policies_in_force.json"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            remove_from_history,
            "record 0: it put version 2 of the tenant's policy in force, which is not in the history",
        ),
        (remove_the_ruling, "record 1: the policy that decided it (acme, version 2) is not in the pack"),
        (remove_the_history, "record 3: the policy that decided it (acme, version 2) is not in the pack"),
        (change_the_text, "the text of version 2 of the tenant's policy is not the one that was activated"),
        (change_text_and_digest, "record 0: it put another text in force than the history has as version 2"),
        (change_the_canonical_text, "is not what its hash is of"),
        (strip_the_canonical_text_of_what_no_record_announced, "nothing shows what policy"),
        (rename, "record 1: the policy that decided it (acme, version 2) is called otherwise in the pack"),
        (
            move_later,
            "record 1: the policy that decided it (acme, version 2) was not in force then for project support",
        ),
        (move_later, "record 0: it put version 2 of the tenant's policy in force at another time"),
        (move_earlier, "record 0: it put version 2 of the tenant's policy in force at another time"),
        (move_before_the_one_it_replaced, "begins before the one that it replaced"),
        (end_otherwise, "ends at another time than the next one begins"),
        (put_a_version_in_twice, "is in the history twice"),
        (point_at_the_older_version, "it says that version 2 of the tenant's policy made another policy"),
        (spoil_the_form, "policies_in_force.json is not of this format"),
        (take_the_file_away, "policies_in_force.json is missing"),
    ],
)
async def test_a_changed_policy_history_is_found_though_the_key_holder_signed_it(
    home: Home, pack: Path, change: Callable[[Files], None], says: str
) -> None:
    code, report = verify(rewritten(pack, change, relist=home.signer), "--key", home.key)
    assert code == 1
    assert any(says in sentence for sentence in sentences(report)), sentences(report)
    assert {one["check"] for one in report["findings"]} <= {"policy"}


async def test_a_call_decided_by_a_policy_that_was_replaced_is_reported(home: Home, tmp_path: Path) -> None:
    replaced = version(2, NOW - timedelta(days=1))
    await call(home, OLD_RULING)
    await make(home, tmp_path / "pack.zip", evidence=Evidence(policies=(OLD, replaced), rulings=(OLD_RULING,)))
    code, report = verify(tmp_path / "pack.zip")
    assert code == 1
    assert "(acme, version 1) was not in force then for project support" in str(sentences(report))


async def test_a_call_accepted_under_no_policy_is_reported(home: Home, tmp_path: Path) -> None:
    async with home.context() as context:
        await context.record(accepted("a", policy_id=None, policy_version=None, policy_hash=None))
        await settled(home)
    made = await make(home, tmp_path / "pack.zip", evidence=KNOWN)
    assert made.policies_unknown == 1
    code, report = verify(tmp_path / "pack.zip")
    assert code == 1
    assert "record 0: it was accepted under no policy" in sentences(report)


async def test_a_project_with_a_policy_of_its_own_is_not_decided_by_its_tenants_alone(
    home: Home, tmp_path: Path
) -> None:
    own = version(1, NOW - timedelta(days=3), "support")
    above = version(1, NOW - timedelta(days=9), OPERATOR_SCOPE)
    both = ruling(above, OLD, own)
    known = Evidence(policies=(above, OLD, own), rulings=(both, ruling(above, OLD), OLD_RULING))
    for made in (both, ruling(above, OLD), OLD_RULING):
        await call(home, made)
    await call(home, ruling(above, OLD), project="other")
    await call(home, both, project="other")
    await make(home, tmp_path / "pack.zip", evidence=known)
    code, report = verify(tmp_path / "pack.zip")
    assert code == 1
    wrong = {one["seq"]: one["says"].rpartition("was ")[2] for one in report["findings"]}
    assert wrong == {
        2: "not in force then for project support",  # the tenant's alone, though the project had its own
        4: "not in force then for project support",  # nor without the operator's
        8: "not in force then for project other",  # another project's
    }


async def test_an_activation_before_the_period_is_proven_and_holds_the_history_to_its_time(
    home: Home, tmp_path: Path
) -> None:
    async with home.context() as context:
        await context.record(activated(NEW, NEW_RULING))
        await settled(home)
    await call(home, NEW_RULING)
    since = home.events("acme")[1]["ts"]
    made = await make(home, tmp_path / "pack.zip", evidence=KNOWN, since=since)
    assert made.first == 1
    assert verify(tmp_path / "pack.zip")[0] == 0

    code, report = verify(rewritten(tmp_path / "pack.zip", move_earlier, relist=home.signer))
    assert code == 1
    assert "record 0: it put version 2 of the tenant's policy in force at another time" in str(sentences(report))

    def forge_the_activation(files: Files) -> None:
        proofs = json.loads(files["proofs/policies.json"])
        proofs[0]["leaf"] = proofs[0]["leaf"].replace('"actor":"cli"', '"actor":"system"')
        put(files, "proofs/policies.json", proofs)

    code, report = verify(rewritten(tmp_path / "pack.zip", forge_the_activation, relist=home.signer))
    assert code == 1
    assert "the proof of an activation does not hold: its record is not under the checkpoint" in sentences(report)


async def test_what_a_version_made_is_known_from_its_record_where_it_cannot_be_made_again(
    home: Home, tmp_path: Path
) -> None:
    async with home.context() as context:
        await context.record(activated(NEW, NEW_RULING))
        await settled(home)
    await call(home, NEW_RULING)
    made = await make(home, tmp_path / "pack.zip", evidence=Evidence(policies=(OLD, NEW)))
    assert made.policies_unknown == 0
    assert verify(tmp_path / "pack.zip")[0] == 0


# --- a gateway whose clock was behind --------------------------------------------------------------------------------


async def call_two_hours_behind(home: Home, made: Ruling, request: str) -> None:
    """The clock is set back while the log is open: with a clock that is behind, it is not opened."""
    behind = 0

    async with home.context(node="gw-2", clock=lambda: time.time() - behind) as context:
        behind = 7200
        await context.record(accepted(request, **named(made)))
        await context.record(completed(request))
        await settled(home)


async def test_calls_of_a_clock_that_was_behind_their_policy_are_explained_by_the_order_of_the_records(
    home: Home, pack: Path, tmp_path: Path
) -> None:
    await call_two_hours_behind(home, NEW_RULING, "behind")
    await make(home, tmp_path / "behind.zip", evidence=KNOWN)
    code, report = verify(tmp_path / "behind.zip")
    assert (code, report["findings"]) == (0, [])
    (told,) = [note for note in report["notes"] if "clock" in note]
    assert told.startswith("1 calls, from record 5 on,")
    assert "the clock of gw-2 was behind" in told


async def test_the_order_of_records_explains_also_where_the_activation_lies_before_the_pack(
    home: Home, pack: Path, tmp_path: Path
) -> None:
    await call_two_hours_behind(home, NEW_RULING, "behind")
    ts = home.events("acme")[-1]["ts"]
    made = await make(home, tmp_path / "behind.zip", evidence=KNOWN, since=ts[:16], until=f"{ts[:16]}:99")
    assert made.first > 0
    assert verify(tmp_path / "behind.zip")[0] == 0


async def test_a_call_recorded_before_its_policy_came_into_force_is_a_fault_whatever_its_clock(
    home: Home, tmp_path: Path
) -> None:
    await call_two_hours_behind(home, NEW_RULING, "early")
    async with home.context() as context:
        await context.record(activated(NEW, NEW_RULING))
        await settled(home)
    await make(home, tmp_path / "early.zip", evidence=KNOWN)
    code, report = verify(tmp_path / "early.zip")
    assert code == 1
    assert any("was not in force then" in sentence for sentence in sentences(report))
