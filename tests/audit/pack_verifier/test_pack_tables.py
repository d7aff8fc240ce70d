"""Tables that contradict the records, signed by whoever has the log's key: each is found, or named as only signed."""

import asyncio
import json
import shutil
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from audit.events.event import (
    AdminChanged,
    AuthFailed,
    BackendAttested,
    BackendConnected,
    Decision,
    InferenceDenied,
    ModelChanged,
    Reason,
    RequestRefused,
)
from audit.events.incident import AuthorityRequest, Oversight
from audit.events.private_value import Private
from audit.incidents.incident import close, notify, open_incident
from audit.incidents.subject_requests import matters, receive, settle
from audit.keys.signer import FileSigner
from audit.pack.export import export
from audit.pack.report import ONLY_SIGNED
from audit.pack_verifier.__main__ import main
from audit.pack_verifier.archive import MAX_WHOLE, Pack
from audit.pack_verifier.check import Check
from audit.pack_verifier.pack_tables import RECOMPUTED, is_checked
from audit.privacy.retention import run
from audit.private.audit_context import AuditContext
from audit.private.erasure import erase
from audit.tree.cosignature import WitnessKey, cosign
from audit.tree.note import VerifierKey, sign_note
from audit.witness.anchor import anchor
from audit.witness.anchor_attestations import AnchorAttestation
from tests.audit.conftest import KNOWN, Home, accepted, completed
from tests.audit.pack.test_export import Files, rewritten, settled

MATTER = "01a22457-e05c-7000-8000-000000000001"


def of_acme(event: type[Any], /, **fields: object) -> Any:
    return event.model_validate({"tenant": "acme", **fields})


async def write_one_of_each(context: AuditContext) -> None:
    """Records that every table has something of."""
    for number, basis in enumerate(("intra_eea", "scc:contract-1+adequacy:CH")):
        call = accepted(f"r{number}", ai_system_id="triage", risk_class="high", transfer_basis=basis)
        await context.record(call, Private({"input": "x"}, subject="ada@example.org"))
        weights = {"weights_sha256": f"{number}" * 64, "weights_source": "computed", "backend_id": "acme-1"}
        await context.record(completed(f"r{number}").model_copy(update=weights))
    reasons = (Reason(rule="residency.process_in", because="=US is not in the EEA", article="GDPR 44"),)
    denied = {"request_id": "no", "key_id": "k", "project": "support", "endpoint": "/v1/x", "stream": False}
    denied |= {"model_requested": "m", "status": 403, "ai_system_id": "triage"}
    await context.record(of_acme(InferenceDenied, **denied, decision=Decision(outcome="deny", reasons=reasons)))
    peer = {"backend_id": "acme-1", "region": "eu-fr-par", "kind": "openai", "address": "10.0.0.1:1"}
    for _ in range(2):
        await context.record(of_acme(BackendConnected, **peer, peer_sha256="0" * 64))
    shown = {"technology": "tpm", "nonce": "1" * 64, "key_sha256": "2" * 64, "weights_sha256": "3" * 64}
    place = {"backend_id": "acme-1", "region": "eu-fr-par"}
    refused = {"type": "backend.attestation_refused", "reason": "the nonce is another one; ask again"}
    await context.record(of_acme(BackendAttested, **shown, **place, **refused))
    admin = {"type": "admin.key.created", "actor": "cli", "target": "K1", "epoch": 3}
    await context.record(of_acme(AdminChanged, **admin))
    await context.record(of_acme(ModelChanged, actor="cli", model="m", what="weights", substantial=True))
    for kind in ("oversight.stopped", "oversight.resumed"):
        await context.record(of_acme(Oversight, type=kind, actor="cli", ai_system_id="triage", reason="test"))
    counted = {"count": 7, "since": "2026-03-01T00:00:00.000Z", "until": "2026-03-01T00:01:00.000Z"}
    await context.record(of_acme(RequestRefused, reason="model_not_found", status=404, key_id="K1", **counted))
    await context.record(of_acme(AuthFailed, reason="revoked", endpoint="/v1/embeddings", **counted))
    asked = {"matter_id": MATTER, "actor": "cli", "authority": "-Court", "country": "FR"}
    await context.record(of_acme(AuthorityRequest, type="authority_request.received", **asked))
    incident = await open_incident(context, "acme", laws=["gdpr"], severity="major", ai_system_id="triage")
    await notify(context, "acme", incident, clock="gdpr.authority", authority="CNIL")
    await close(context, "acme", incident, reason="solved", release=True)
    await run(context, "acme")
    for right in ("erasure", "access", "objection"):
        await receive(context, "acme", right=right, subject="ada@example.org", received_at="2026-02-01T00:00:00.000Z")
    await erase(context, "acme", subject="ada@example.org")
    with context.reading() as reader:
        erasure, access, _ = matters(reader, "acme")
    await settle(context, erasure, outcome="answered", act_seq=erasure.candidates[0][0])
    await settle(context, access, outcome="refused", reason="unknown_person")


async def write_pack(home: Home, target: Path) -> None:
    async with home.context() as context:
        await write_one_of_each(context)
        await settled(home)
        await export(context, "acme", target, evidence=KNOWN)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """One log for all tests of this file: they change packs, not the log."""
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def original(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("pack") / "pack.zip"
    asyncio.run(write_pack(home, target))
    return target


@pytest.fixture
def pack(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path))


def check(pack: Path, *witnesses: str, key: str | None = None) -> dict[str, Any]:
    made = Check(Pack(pack), key, [], list(witnesses))
    made.run()
    return made.report()


def says(report: dict[str, Any]) -> list[str]:
    return [one["says"] for one in report["findings"]]


def test_a_pack_with_something_in_every_table_holds(pack: Path) -> None:
    report = check(pack)
    assert report["findings"] == []
    with zipfile.ZipFile(pack) as archive:
        for name in RECOMPUTED:
            assert len(archive.read(name).splitlines()) > 1, f"{name} is empty: the comparison would show nothing"
        listed = set(json.loads(archive.read("manifest.json"))["files"])
    assert set(report["only_signed"]) == {name for name in listed if not is_checked(name)}


@pytest.mark.parametrize("name", RECOMPUTED)
def test_a_table_that_contradicts_the_records_is_found_though_the_real_key_signed_it(
    home: Home, pack: Path, name: str
) -> None:
    def change(files: Files) -> None:
        text = files[name].decode()
        at = max(index for index, char in enumerate(text) if char.isdigit())
        files[name] = f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}".encode()

    report = check(rewritten(pack, change, relist=home.signer))
    assert says(report) == [f"{name} says something else than the records"]


@pytest.mark.parametrize("name", RECOMPUTED)
@pytest.mark.parametrize("how", ["shorter", "longer", "gone", "empty"])
def test_a_table_with_a_line_less_or_more_or_none_at_all_is_found(home: Home, pack: Path, name: str, how: str) -> None:
    def change(files: Files) -> None:
        lines = files[name].splitlines(keepends=True)
        if how == "gone":
            del files[name]
        else:
            files[name] = b"".join({"shorter": lines[:-1], "longer": [*lines, lines[-1]], "empty": []}[how])

    report = check(rewritten(pack, change, relist=home.signer))
    assert not report["ok"]
    assert any(name in sentence for sentence in says(report))


@pytest.mark.parametrize("name", ["README.html", "ropa_controller.json", "backends.json", "control_mapping.csv"])
def test_what_no_record_proves_is_named_as_only_signed(home: Home, pack: Path, name: str) -> None:
    def change(files: Files) -> None:
        files[name] = files[name] + b" "

    report = check(rewritten(pack, change, relist=home.signer))
    assert report["ok"]
    assert name in report["only_signed"]
    with zipfile.ZipFile(pack) as archive:
        page = archive.read("README.html").decode()
    assert ONLY_SIGNED in page


def test_a_pack_of_another_tenant_says_whose_it_is_and_fails_under_that_tenants_key(home: Home, pack: Path) -> None:
    assert check(pack)["tenant"] == "acme"
    other = str(home.key).replace("audit+", "audit/globex+")
    assert not check(pack, key=other)["ok"]


# --- what vouches from outside ---------------------------------------------------------------------------------------


async def write_anchored(home: Home, target: Path, witness: FileSigner) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
        await settled(home)
        await anchor(context)
        await settled(home, "_anchor")
        with context.reading() as reader:
            last = reader.last_checkpoint("_anchor")
        assert last is not None
        note = last.note + cosign(last.note.partition("\n\n")[0] + "\n", witness.name, witness, 1_790_000_000)
        await export(context, "acme", target, evidence=KNOWN, attestations=[AnchorAttestation(note)])


@pytest.fixture
def anchored(tmp_path: Path) -> tuple[Path, str]:
    """A pack with an anchor that a witness cosigned, and the witness's key."""
    witness = FileSigner.open(tmp_path / "witness.key", name="example.com/witness")
    asyncio.run(write_anchored(Home(tmp_path / "log"), tmp_path / "pack.zip", witness))
    return tmp_path / "pack.zip", str(WitnessKey(witness.name, witness.public_key))


def signer_of(pack: Path) -> FileSigner:
    return Home(pack.parent / "log").signer


def drop_the_anchor(files: Files) -> None:
    del files["proofs/anchor.json"]


def drop_the_cosignature(files: Files) -> None:
    said = json.loads(files["proofs/anchor.json"])
    said["vouchers"] = [one for one in said["vouchers"] if one["note"].count("\u2014 ") == 1]
    files["proofs/anchor.json"] = json.dumps(said).encode()


def test_a_witness_whose_cosignature_is_there_is_satisfied(anchored: tuple[Path, str]) -> None:
    report = check(*anchored)
    assert report["findings"] == []
    assert any("its signature holds" in note for note in report["notes"])


@pytest.mark.parametrize("drop", [drop_the_anchor, drop_the_cosignature])
def test_a_witness_whose_cosignature_is_gone_fails_the_pack_though_the_real_key_signed_it(
    anchored: tuple[Path, str], drop: Callable[[Files], None]
) -> None:
    pack, witness = anchored
    report = check(rewritten(pack, drop, relist=signer_of(pack)), witness)
    assert any("cosigned nothing that vouches" in sentence for sentence in says(report))


def test_an_anchor_that_the_manifest_promises_has_to_be_there(anchored: tuple[Path, str]) -> None:
    report = check(rewritten(anchored[0], drop_the_anchor, relist=signer_of(anchored[0])))
    assert says(report) == ["the manifest says that an anchor vouches for the records, and none does"]


def test_a_witness_without_any_anchor_fails_the_pack(pack: Path, tmp_path: Path) -> None:
    witness = FileSigner.open(tmp_path / "w.key", name="example.com/witness")
    report = check(pack, str(WitnessKey(witness.name, witness.public_key)))
    assert says(report) == ["the witness example.com/witness cosigned nothing that vouches for these records"]


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["manifest.json", "checkpoint", "fields.jsonl", "proofs/range.json"])
def test_a_file_that_unpacks_to_more_than_memory_should_hold_is_refused(pack: Path, tmp_path: Path, name: str) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(pack) as archive, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as made:
        for one in archive.namelist():
            if one != name:
                made.writestr(one, archive.read(one))
        with made.open(name, "w") as file:
            for _ in range((MAX_WHOLE >> 20) + 8):
                file.write(b" " * (1 << 20))
    report = check(bomb)
    assert not report["ok"]


# --- the rest of the tampering table ---------------------------------------------------------------------------------


def contents(pack: Path) -> Files:
    with zipfile.ZipFile(pack) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(files: Files, target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target


def test_any_file_that_is_changed_or_gone_without_the_key_is_named(pack: Path, tmp_path: Path) -> None:
    files = contents(pack)
    for name in set(files) - {"manifest.json", "manifest.sig"}:
        changed = check(zipped({**files, name: files[name] + b"\n"}, tmp_path / "changed.zip"))
        assert f"the file {name} was changed" in says(changed)
        gone = check(zipped({one: files[one] for one in files if one != name}, tmp_path / "gone.zip"))
        assert f"the file {name} is missing" in says(gone)


def hash_without_signature(files: Files) -> None:
    files["denied.csv"] += b"x"
    manifest = json.loads(files["manifest.json"])
    manifest["files"]["denied.csv"] = sha256(files["denied.csv"]).hexdigest()
    files["manifest.json"] = json.dumps(manifest).encode()


def garbage_signature(files: Files) -> None:
    files["manifest.sig"] = files["manifest.sig"][:-12] + b"AAAAAAAAAA=\n"


def another_time(files: Files) -> None:
    files["manifest.json"] = files["manifest.json"].replace(b'"made_at": "2', b'"made_at": "1')


def another_case(files: Files) -> None:
    files["EVENTS.CSV"] = files["events.csv"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (hash_without_signature, "it was signed for another manifest"),
        (garbage_signature, "the signature of the manifest does not hold"),
        (another_time, "it was signed for another manifest"),
        (another_case, "the file EVENTS.CSV is not in the manifest"),
    ],
)
def test_a_manifest_that_was_changed_without_the_key_does_not_hold(
    pack: Path, change: Callable[[Files], None], why: str
) -> None:
    assert any(why in sentence for sentence in says(check(rewritten(pack, change))))


def test_a_file_twice_in_the_zip_is_named(pack: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(pack, "a") as archive:
        archive.writestr("README.html", b"another page")
    assert "the file README.html is in the pack more than once" in says(check(pack))


def test_a_zip_that_is_cut_off_is_no_pack(pack: Path) -> None:
    pack.write_bytes(pack.read_bytes()[:-100])
    assert main([str(pack)]) == 2


def test_files_of_another_pack_and_its_checkpoint_do_not_fit(home: Home, pack: Path, tmp_path: Path) -> None:
    async def grow() -> None:
        async with home.context() as context:
            await context.record(accepted("later"))
            await settled(home)
            await export(context, "acme", tmp_path / "two.zip", evidence=KNOWN)

    asyncio.run(grow())
    other = contents(tmp_path / "two.zip")
    mixed = check(zipped({**contents(pack), "events.csv": other["events.csv"]}, tmp_path / "mixed.zip"))
    assert "the file events.csv was changed" in says(mixed)

    def newer_checkpoint(files: Files) -> None:
        files["checkpoint"] = other["checkpoint"]

    newer = check(rewritten(pack, newer_checkpoint, relist=home.signer))
    assert "the proof of what came after the last record does not fit the checkpoint" in says(newer)


def strip_certificates(files: Files) -> None:
    for name in [name for name in files if name.startswith("certificates/")]:
        del files[name]


def drop_fields(files: Files) -> None:
    files["fields.jsonl"] = b""


def cut_the_end(files: Files) -> None:
    lines = files["events.jsonl"].splitlines(keepends=True)[:-2]
    files["events.jsonl"] = b"".join(lines)
    files["proofs/leaves.bin"] = files["proofs/leaves.bin"][: 32 * len(lines)]
    manifest = json.loads(files["manifest.json"])
    files["manifest.json"] = json.dumps({**manifest, "end": len(lines)}).encode()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (strip_certificates, "is said to be erased, but certificate"),
        (drop_fields, "is missing, and no certificate says that it was deleted"),
        (cut_the_end, "the proof of what came after the last record does not fit the checkpoint"),
    ],
)
def test_what_the_key_holder_leaves_out_is_found(
    home: Home, pack: Path, change: Callable[[Files], None], why: str
) -> None:
    assert any(why in sentence for sentence in says(check(rewritten(pack, change, relist=home.signer))))


def test_a_pack_signed_anew_by_another_key_needs_the_right_key_to_be_found(
    home: Home, pack: Path, tmp_path: Path
) -> None:
    other = FileSigner.open(tmp_path / "other.key", name=home.signer.name)

    def own_key(files: Files) -> None:
        manifest = json.loads(files["manifest.json"])
        origin = str(manifest["origin"])
        manifest["key"] = str(VerifierKey(origin, other.public_key))
        files["manifest.json"] = json.dumps(manifest).encode()
        text = files["checkpoint"].decode().partition("\n\n")[0] + "\n"
        files["checkpoint"] = sign_note(text, origin, other).encode()

    forged = rewritten(pack, own_key, relist=other)
    assert any("certificate" in sentence for sentence in says(check(forged))), "the certificates betray it"
    assert any(
        "under another key than the one you gave" in sentence for sentence in says(check(forged, key=str(home.key)))
    )
