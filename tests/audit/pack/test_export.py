"""Evidence packs, checked as an auditor does: by verify.py alone, in a bare interpreter. And tampered with."""

import codecs
import json
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from audit.errors import AuditError, StoreError, VerificationFailed
from audit.events.event import Decision, InferenceDenied, Reason
from audit.events.private_value import Private
from audit.incidents.pack_inputs import Party
from audit.keys.signer import FileSigner
from audit.pack.export import Summary, export
from audit.pack_verifier.ed25519 import ed25519
from audit.privacy.rights import restrict
from audit.private.erasure import erase, finish
from audit.tree.merkle import leaf_hash, tree_hash
from audit.tree.note import sign_note
from audit.tree.tlog_checkpoint import Checkpoint, origin_of, sign_checkpoint
from tests.audit.conftest import KNOWN, VECTORS, Home, accepted, completed, eventually
from tests.audit.published_ocsf import problems

ALICE, BOB = "alice@example.com", "bob@example.com"
CALLS = 6
Files = dict[str, bytes]


def verify(pack: Path, *options: object, where: Path | None = None) -> tuple[int, dict[str, Any]]:
    """Run the verifier that lies in the pack, without site packages and without this repository."""
    folder = pack.parent / f"{pack.stem}-out"
    with zipfile.ZipFile(pack) as archive:
        archive.extractall(folder)
    done = subprocess.run(
        [sys.executable, "-I", "-S", folder / "verify.py", where or folder, "--json", *map(str, options)],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        env={},
    )
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


async def settled(home: Home, tenant: str = "acme") -> None:
    """Wait until everything there is has been signed."""

    def signed() -> bool:
        reader = home.reader()
        try:
            return [one.size for one in reader.checkpoints(tenant)][-1:] == [reader.head(tenant)[0]]
        finally:
            reader.close()

    await eventually(signed)


async def make(home: Home, target: Path, **options: Any) -> Summary:
    async with home.context() as context:
        return await export(context, "acme", target, **{"evidence": KNOWN, **options})


@pytest.fixture
async def filled(home: Home) -> AsyncIterator[Home]:
    """A log with calls of two people, one refusal, and one of the two erased."""
    async with home.context() as context:
        for number in range(CALLS):
            person = ALICE if number % 2 else BOB
            await context.record(accepted(f"r{number}"), Private({"input": f"secret {number}"}, person))
            await context.record(completed(f"r{number}"))
        reason = Reason(rule="residency.process_in", because="<b>US</b> is not in the EEA", article="GDPR 44")
        denied = {"request_id": "no", "key_id": "k", "project": "=cmd", "endpoint": "/v1/x", "stream": False}
        await context.record(
            InferenceDenied.model_validate(
                denied
                | {"tenant": "acme", "model_requested": "m", "status": 403}
                | {"decision": Decision(outcome="deny", reasons=(reason,))}
            )
        )
        await erase(context, "acme", subject=ALICE)
        await settled(home)
    yield home


@pytest.fixture
async def pack(filled: Home, tmp_path: Path) -> Path:
    target = tmp_path / "pack.zip"
    await make(filled, target)
    return target


async def test_an_auditor_checks_a_pack_with_nothing_but_python(filled: Home, pack: Path) -> None:
    code, report = verify(pack, "--key", filled.key)
    assert (code, report["ok"], report["findings"], report["notes"]) == (
        0,
        True,
        [],
        [
            "No record of this tenant says when these came into force; their times are what the gateway's register "
            "says: version 1 of the tenant's policy",
            "Nothing outside the log vouches for this pack: it has no anchor.",
        ],
    )
    assert report["records"] == 2 * CALLS + 3
    assert report["fields"] == {"erased": CALLS, "withheld": CALLS}
    assert verify(pack, where=pack)[0] == 0
    assert "taken from the pack itself" in verify(pack)[1]["notes"][0]
    assert filled.types("acme")[-1] == "log.exported"


async def test_every_part_of_a_pack_is_there_and_says_what_happened(pack: Path) -> None:
    with zipfile.ZipFile(pack) as archive:
        files = {name: archive.read(name).decode(errors="replace") for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])
    assert set(manifest["files"]) == set(files) - {"manifest.json", "manifest.sig"}
    assert files["transfer_report.csv"].splitlines()[1].endswith(f",eu-fr-par,intra_eea,{CALLS}")
    month = files["transfer_report.csv"].splitlines()[1][:7]
    for tool in ("adequacy", "scc", "bcr", "derogation"):
        assert f"{month},,,,,,,,{tool},0\r\n" in files["transfer_report.csv"]
    assert "residency.process_in" in files["denied.csv"]
    assert "erasure.completed" in files["admin_access.csv"]
    assert "Example SAS (FR)" in files["ropa_processor.csv"]
    assert files["retention_run.csv"].count("\r\n") == 1
    assert len(files["events.csv"].splitlines()) == len(files["events.jsonl"].splitlines()) + 1
    assert ",=cmd," not in files["events.csv"] and ",'=cmd," in files["events.csv"]
    page = files["README.html"]
    assert "&lt;b&gt;US&lt;/b&gt;" in page and "<b>US" not in page
    assert "<svg" in page and "<script" not in page and "http" not in page.replace("http-equiv", "")
    everything = "".join(files.values())
    assert "secret" not in everything and ALICE not in everything and BOB not in everything


async def test_every_line_of_the_ocsf_export_is_valid_by_the_published_schema(pack: Path) -> None:
    with zipfile.ZipFile(pack) as archive:
        lines = archive.read("ocsf.jsonl").decode().splitlines()
        csv_files = {name: archive.read(name) for name in archive.namelist() if name.endswith(".csv")}
    assert len(lines) == 2 * CALLS + 3
    assert [problems(json.loads(line)) for line in lines] == [[]] * len(lines)
    for name, content in csv_files.items():
        assert content.startswith(codecs.BOM_UTF8) is not name.startswith("dora/"), name


async def test_the_readme_names_the_parties_and_what_no_register_says(filled: Home, tmp_path: Path) -> None:
    party = Party(name="<i>ACME</i> GmbH", contact="privacy@acme.example")
    made = await make(filled, tmp_path / "p.zip", evidence=KNOWN.model_copy(update={"controller": party}))
    with zipfile.ZipFile(tmp_path / "p.zip") as archive:
        page = archive.read("README.html").decode()
    assert "Controller: &lt;i&gt;ACME&lt;/i&gt; GmbH, privacy@acme.example" in page and "Processor:" not in page
    assert "registers.json: tenants.acme.controller.dpo" in page
    fields = [gap.field for gap in made.missing]
    assert "controller.dpo" in fields and "controller.contact" not in fields


async def test_a_disclosed_value_is_checked_and_a_restricted_one_withheld(filled: Home, tmp_path: Path) -> None:
    await make(filled, tmp_path / "open.zip", disclose=True)
    code, report = verify(tmp_path / "open.zip")
    assert (code, report["fields"]) == (0, {"erased": CALLS, "disclosed": CALLS})
    async with filled.context() as context:
        await restrict(context, "acme", BOB)
    await make(filled, tmp_path / "shut.zip", disclose=True)
    assert verify(tmp_path / "shut.zip")[1]["fields"] == {"erased": CALLS, "withheld": CALLS}


async def test_a_pack_of_a_part_proves_itself_and_joins_the_one_before(filled: Home, tmp_path: Path) -> None:
    stamps = [event["ts"] for event in filled.events("acme")]
    await make(filled, tmp_path / "one.zip")
    held = tmp_path / "held.txt"
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        held.write_bytes(archive.read("checkpoint"))
    async with filled.context() as context:
        for number in range(300):
            await context.record(accepted(f"later{number}"))
        await settled(filled)
    later = filled.events("acme")[len(stamps) + 2]["ts"]
    made = await make(filled, tmp_path / "two.zip", since=later)
    assert made.first > 0
    code, report = verify(tmp_path / "two.zip", "--key", filled.key)
    assert (code, report["findings"]) == (0, [])
    assert verify(tmp_path / "two.zip", "--checkpoint", held)[0] == 1  # it lies before this part
    whole = await make(filled, tmp_path / "all.zip")
    assert whole.first == 0
    assert verify(tmp_path / "all.zip", "--checkpoint", held)[0] == 0
    before = await make(filled, tmp_path / "none.zip", until="2000")
    assert (before.first, before.end) == (0, 0)
    assert verify(tmp_path / "none.zip")[0] == 0


# --- tampering -------------------------------------------------------------------------------------------------------


def lines(files: Files) -> list[bytes]:
    return files["events.jsonl"].splitlines(keepends=True)


def edit(files: Files) -> None:
    files["events.jsonl"] = files["events.jsonl"].replace(b'"key_id":"k1"', b'"key_id":"k2"', 1)


def delete(files: Files) -> None:
    files["events.jsonl"] = b"".join(lines(files)[:4] + lines(files)[5:])


def insert(files: Files) -> None:
    files["events.jsonl"] = b"".join([*lines(files)[:4], lines(files)[4].replace(b"r2", b"rX"), *lines(files)[4:]])


def reorder(files: Files) -> None:
    rows = lines(files)
    rows[2], rows[4] = rows[4], rows[2]
    files["events.jsonl"] = b"".join(rows)


def truncate(files: Files) -> None:
    files["events.jsonl"] = b"".join(lines(files)[:-2])


def backdate(files: Files) -> None:
    files["events.jsonl"] = files["events.jsonl"].replace(b'"ts":"2', b'"ts":"1', 1)


def swap_tenants(files: Files) -> None:
    files["events.jsonl"] = files["events.jsonl"].replace(b'"tenant":"acme"', b'"tenant":"globex"')


def strip_certificate(files: Files) -> None:
    del files[next(name for name in files if name.startswith("certificates/"))]


def alter_certificate(files: Files) -> None:
    name = next(name for name in files if name.startswith("certificates/"))
    files[name] = files[name].replace(b'"cause":"erasure"', b'"cause":"retention"')


def hide_a_field(files: Files) -> None:
    files["fields.jsonl"] = b"".join(files["fields.jsonl"].splitlines(keepends=True)[1:])


def claim_erased(files: Files) -> None:
    said = json.loads(files["fields.jsonl"].splitlines()[0])
    by = next(name for name in files if name.startswith("certificates/"))[13:-5]
    said |= {"state": "erased", "certificate": by}
    files["fields.jsonl"] = json.dumps(said).encode() + b"\n" + files["fields.jsonl"].split(b"\n", 1)[1]


def add_a_file(files: Files) -> None:
    files["annex.pdf"] = b"trust me"


def forge_the_count(files: Files) -> None:
    files["transfer_report.csv"] = files["transfer_report.csv"].replace(b",6\r\n", b",5\r\n")


def rewritten(pack: Path, change: Callable[[Files], None], *, relist: FileSigner | None = None) -> Path:
    """The pack changed; with a key, the manifest is made to fit and signed again."""
    with zipfile.ZipFile(pack) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    if relist is not None:
        manifest = json.loads(files["manifest.json"])
        names = set(files) - {"manifest.json", "manifest.sig"}
        manifest["files"] = {name: sha256(files[name]).hexdigest() for name in names}
        files["manifest.json"] = json.dumps(manifest).encode()
        text = f"{manifest['origin']} evidence pack\n{sha256(files['manifest.json']).hexdigest()}\n"
        files["manifest.sig"] = sign_note(text, manifest["origin"], relist).encode()
    target = pack.with_name(f"{change.__name__}-{relist is not None}.zip")
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target


MATRIX = [
    (edit, "record 0: it is not what was logged"),
    (delete, "record 4: here is what was logged as record 5"),
    (insert, "record 4: it is not what was logged"),
    (reorder, "record 2: here is what was logged as record 4"),
    (truncate, "record 14: record 14 is missing at the end"),
    (backdate, "record 0: it is not what was logged"),
    (swap_tenants, "record 0: it belongs to tenant globex"),
    (strip_certificate, "is said to be erased, but certificate"),
    (alter_certificate, "the signature of"),
    (hide_a_field, "is missing, and no certificate says that it was deleted"),
    (claim_erased, "does not cover input"),
]


def sentences(report: dict[str, Any]) -> list[str]:
    return [("" if one["seq"] is None else f"record {one['seq']}: ") + one["says"] for one in report["findings"]]


@pytest.mark.parametrize(("change", "says"), [*MATRIX, (add_a_file, "annex.pdf"), (forge_the_count, "transfer_report")])
async def test_whatever_is_changed_in_a_pack_is_found_and_named(
    pack: Path, change: Callable[[Files], None], says: str
) -> None:
    code, report = verify(rewritten(pack, change))
    assert code == 1
    assert any(says in sentence for sentence in sentences(report)), sentences(report)
    assert any(one["check"] == "files" for one in report["findings"])


@pytest.mark.parametrize(("change", "says"), MATRIX)
async def test_even_the_holder_of_the_key_cannot_make_a_changed_pack_fit_its_checkpoint(
    filled: Home, pack: Path, change: Callable[[Files], None], says: str
) -> None:
    code, report = verify(rewritten(pack, change, relist=filled.signer))
    assert code == 1
    assert any(says in sentence for sentence in sentences(report)), sentences(report)
    assert not any(one["check"] in ("files", "manifest") for one in report["findings"])


async def test_a_history_rewritten_and_signed_anew_is_shown_by_a_checkpoint_that_was_kept(
    filled: Home, pack: Path, tmp_path: Path
) -> None:
    held = tmp_path / "held.txt"

    def rewrite(files: Files) -> None:
        held.write_bytes(files["checkpoint"])
        edit(files)
        files["events.csv"] = files["events.csv"].replace(b",k1,", b",k2,", 1)
        first, _, rest = files["ocsf.jsonl"].partition(b"\n")
        files["ocsf.jsonl"] = first.replace(b'"k1"', b'"k2"') + b"\n" + rest
        leaves = [leaf_hash(line.rstrip(b"\n")) for line in lines(files)]
        files["proofs/leaves.bin"] = b"".join(leaves)
        files["proofs/range.json"] = b'{"left": [], "right": []}'
        forged = Checkpoint(origin_of(filled.key.name, "acme"), len(leaves), tree_hash(leaves))
        files["checkpoint"] = sign_checkpoint(forged, filled.signer).encode()

    forged = rewritten(pack, rewrite, relist=filled.signer)
    assert verify(forged, "--key", filled.key)[0] == 0  # nothing in a file can show it
    code, report = verify(forged, "--key", filled.key, "--checkpoint", held)
    assert (code, [one["check"] for one in report["findings"]]) == (1, ["held"])
    assert "history was rewritten" in report["findings"][0]["says"]


async def test_a_pack_signed_by_another_key_is_refused_by_whoever_holds_the_right_one(
    filled: Home, tmp_path: Path
) -> None:
    other = Home(tmp_path / "other")
    async with other.context() as context:
        await context.record(accepted("a"))
        await settled(other)
    target = tmp_path / "other.zip"
    await make(other, target)
    assert verify(target)[0] == 0
    code, report = verify(target, "--key", filled.key)
    assert code == 1
    assert {"key", "manifest", "checkpoint"} <= {one["check"] for one in report["findings"]}


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig", "checkpoint", "events.jsonl", "fields.jsonl"])
async def test_a_file_that_is_missing_is_named(pack: Path, name: str) -> None:
    def remove(files: Files) -> None:
        del files[name]

    code, report = verify(rewritten(pack, remove))
    assert code == 1
    assert name in str(report["findings"])


def test_what_is_no_pack_is_said_to_be_none(tmp_path: Path, pack: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("not a zip")
    assert verify(pack, where=other)[0] == 2
    assert verify(pack, where=tmp_path / "absent.zip")[0] == 2


# --- making one ------------------------------------------------------------------------------------------------------


async def test_a_pack_is_never_written_over_another_file(pack: Path, filled: Home) -> None:
    before = pack.read_bytes()
    with pytest.raises(AuditError, match="exists already"):
        await make(filled, pack)
    assert pack.read_bytes() == before


async def test_a_log_that_does_not_hold_is_not_handed_out(filled: Home, tmp_path: Path) -> None:
    third = "seq = 3 AND tree = (SELECT id FROM tree WHERE tenant = 'acme')"
    with closing(sqlite3.connect(filled.path)) as db, db:
        db.execute(
            "UPDATE leaf SET hash = zeroblob(32) WHERE seq = 3 AND tree = (SELECT id FROM tree WHERE tenant='acme')"
        )
    with pytest.raises(VerificationFailed, match="does not hold"):
        await make(filled, tmp_path / "bad.zip")
    with closing(sqlite3.connect(filled.path)) as db, db:
        db.execute(f"DELETE FROM leaf WHERE {third}")
    with pytest.raises(StoreError, match="lacks record 3"):
        await make(filled, tmp_path / "bad.zip")
    assert [file.name for file in tmp_path.iterdir() if "bad" in file.name] == []


async def test_no_pack_is_made_across_a_deletion(filled: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(filled.side()) as side, side.transaction() as db:
        db.execute("UPDATE deletion SET certificate = NULL")
    with pytest.raises(VerificationFailed, match="under way"):
        await make(filled, tmp_path / "bad.zip")
    async with filled.context() as context:
        await finish(context)
        await settled(filled)
    seen = iter([({"a"}, set()), ({"a", "b"}, set())])
    monkeypatch.setattr("audit.pack.export.deletions_of", lambda *_: next(seen))
    with pytest.raises(VerificationFailed, match="make it again"):
        await make(filled, tmp_path / "bad.zip")
    assert not (tmp_path / "bad.zip").exists()


# --- the verifier's own Ed25519 --------------------------------------------------------------------------------------

GROUPS = json.loads((VECTORS / "wycheproof" / "ed25519_test.json").read_text())["testGroups"]
SIGNATURES = [(group["publicKey"]["pk"], test) for group in GROUPS for test in group["tests"]]


def test_public_ed25519_vectors_are_judged_as_their_authors_say() -> None:
    assert len(SIGNATURES) > 100
    wrong = [
        test["tcId"]
        for key, test in SIGNATURES
        if ed25519(bytes.fromhex(key), bytes.fromhex(test["msg"]), bytes.fromhex(test["sig"]))
        != (test["result"] == "valid")
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["there.zip", "none/pack.zip", "n" * 300])
async def test_a_target_that_cannot_be_written_is_refused_before_the_export_is_recorded(
    filled: Home, tmp_path: Path, name: str
) -> None:
    (tmp_path / "there.zip").write_text("another file")
    before = filled.events("acme")
    async with filled.context() as context:
        with pytest.raises(AuditError):
            await export(context, "acme", tmp_path / name, evidence=KNOWN)
    assert filled.events("acme") == before and (tmp_path / "there.zip").read_text() == "another file"
