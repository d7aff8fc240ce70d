"""What stands for a pack from outside the log, and what of it verify.py can tell false."""

import json
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from audit.errors import TimestampError
from audit.keys.signer import FileSigner
from audit.pack.export import export
from audit.privacy.retention import run
from audit.privacy.schedule import Schedule
from audit.storage.attested_files import WITNESSED, files_beside
from audit.storage.tiles import Folder
from audit.tree.cosignature import WitnessKey, cosign
from audit.tree.merkle import leaf_hash, tree_hash
from audit.tree.tlog_checkpoint import Checkpoint, origin_of, sign_checkpoint
from audit.witness.anchor import anchor
from audit.witness.anchor_attestations import attestations
from audit.witness.timestamp import timestamp
from tests.audit.conftest import KNOWN, Home, accepted, completed
from tests.audit.pack.test_export import Files, edit, lines, rewritten, sentences, settled, verify
from tests.audit.test_retention_records import YEAR_AGO
from tests.fakes.tsa import FakeTsa

URL = "https://tsa.example/tsr"


@pytest.fixture
def witness(tmp_path: Path) -> FileSigner:
    return FileSigner.open(tmp_path / "witness.key", name="second.example/witness")


@pytest.fixture
async def pack(home: Home, tmp_path: Path, witness: FileSigner) -> Path:
    """With an anchor, which a witness cosigned and an authority stamped."""
    tsa = FakeTsa()
    async with home.context() as context:
        await context.record(accepted("a"))
        await context.record(completed("a"))
        await settled(home)
        await anchor(context)
        await settled(home, "_anchor")
        await timestamp(context, home.path.parent, URL, [tsa.root], tsa)
        with closing(home.reader()) as reader:
            note = list(reader.checkpoints("_anchor"))[-1].note
        text = note.partition("\n\n")[0] + "\n"
        cosigned = note + cosign(text, witness.name, witness, 1_800_000_000)
        Folder(home.path.parent / WITNESSED).write("_anchor-second.note", cosigned.encode())
        await export(
            context,
            "acme",
            tmp_path / "pack.zip",
            evidence=KNOWN,
            attestations=attestations(files_beside(home.path.parent)),
        )
    return tmp_path / "pack.zip"


async def test_witness_and_timestamp_are_told_with_what_was_not_checked(
    home: Home, pack: Path, witness: FileSigner
) -> None:
    code, report = verify(pack, "--key", home.key)
    assert (code, report["findings"]) == (0, [])
    told = "\n".join(report["notes"])
    assert "second.example/witness cosigned the anchor at 2027-01-15T08:00:00Z; not checked: give its key" in told
    assert "A time-stamping authority says that the anchor was there at 20" in told
    assert "Its signature is not checked here: openssl ts -verify" in told
    code, report = verify(pack, "--key", home.key, "--witness", WitnessKey(witness.name, witness.public_key))
    assert code == 0
    assert any(note.endswith("its signature holds") for note in report["notes"])


def test_the_page_says_who_vouches_and_when(pack: Path) -> None:
    with zipfile.ZipFile(pack) as archive:
        page = archive.read("README.html").decode()
    assert ">second.example/witness<" in page and ">cosignature<" in page and ">2027-01-15 08:00:00 UTC<" in page
    assert ">tsa.example<" in page and ">timestamp (RFC 3161)<" in page
    assert "attempts failed" not in page and "No outside party yet" not in page


async def test_the_page_says_that_timestamps_fail(home: Home, tmp_path: Path) -> None:
    tsa = FakeTsa()
    async with home.context() as context:
        await context.record(accepted("a"))
        await settled(home)
        await anchor(context)
        await settled(home, "_anchor")
        tsa.nonce = 7
        for _ in range(2):
            with pytest.raises(TimestampError):
                await timestamp(context, home.path.parent, URL, [tsa.root], tsa)
        await export(context, "acme", tmp_path / "pack.zip", evidence=KNOWN)
    with zipfile.ZipFile(tmp_path / "pack.zip") as archive:
        assert "2 attempts failed: wrong_nonce" in archive.read("README.html").decode()


def anchor_of(files: Files) -> dict[str, object]:
    return json.loads(files["proofs/anchor.json"])


def put(files: Files, said: dict[str, object]) -> None:
    files["proofs/anchor.json"] = json.dumps(said).encode()


def swap_leaf(files: Files) -> None:
    said = anchor_of(files)
    put(files, said | {"leaf": str(said["leaf"]).replace('"checkpoint_sha256":"', '"checkpoint_sha256":"0', 1)})


def spoil_proof(files: Files) -> None:
    said = anchor_of(files)
    for voucher in said["vouchers"]:  # type: ignore[attr-defined]
        voucher["proof"] = [*voucher["proof"], "00" * 32]
    put(files, said)


def swap_token(files: Files) -> None:
    name = next(name for name in files if name.endswith(".tsr"))
    files[name] = FakeTsa()(URL, _request())


def _request() -> bytes:
    from audit.witness.timestamp import make_request

    return make_request(b"something else").as_bytes()


def cut_token(files: Files) -> None:
    name = next(name for name in files if name.endswith(".tsr"))
    files[name] = files[name][:100]


def no_json(files: Files) -> None:
    files["proofs/anchor.json"] = b"{"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (swap_leaf, "the anchor vouches for another checkpoint"),
        (spoil_proof, "does not hold"),
        (swap_token, "the timestamp is over something else"),
        (cut_token, "the timestamp is cut short"),
        (no_json, "is not of this format"),
    ],
)
async def test_what_was_changed_on_the_way_outside_is_named(
    home: Home, pack: Path, change: Callable[[Files], None], says: str
) -> None:
    code, report = verify(rewritten(pack, change, relist=home.signer), "--key", home.key)
    assert code == 1
    assert any(says in sentence for sentence in sentences(report)), sentences(report)


async def test_a_cosignature_of_another_text_is_found_out(home: Home, pack: Path, witness: FileSigner) -> None:
    def forge(files: Files) -> None:
        said = anchor_of(files)
        for voucher in said["vouchers"]:  # type: ignore[attr-defined]
            note = voucher["note"]
            if witness.name in note:
                body = note[: note.index(f"— {witness.name}")]
                voucher["note"] = body + cosign("another text\n1\nx\n", witness.name, witness, 1)
        put(files, said)

    code, report = verify(
        rewritten(pack, forge, relist=home.signer), "--witness", WitnessKey(witness.name, witness.public_key)
    )
    assert code == 1
    assert any("the cosignature of second.example/witness is wrong" in says for says in sentences(report))


async def test_a_history_rewritten_by_the_holder_of_the_key_is_not_the_one_that_was_anchored(
    home: Home, pack: Path
) -> None:
    def rewrite(files: Files) -> None:
        edit(files)
        leaves = [leaf_hash(line.rstrip(b"\n")) for line in lines(files)]
        files["proofs/leaves.bin"] = b"".join(leaves)
        files["proofs/range.json"] = b'{"left": [], "right": []}'
        forged = Checkpoint(origin_of(home.key.name, "acme"), len(leaves), tree_hash(leaves))
        files["checkpoint"] = sign_checkpoint(forged, home.signer).encode()

    code, report = verify(rewritten(pack, rewrite, relist=home.signer), "--key", home.key)
    assert code == 1
    assert any("another history was anchored" in says for says in sentences(report)), sentences(report)


# --- expired records -------------------------------------------------------------------------------------------------


@pytest.fixture
async def old_pack(home: Home, tmp_path: Path) -> Path:
    async with home.context(clock=lambda: YEAR_AGO) as context:
        for number in range(3):
            await context.record(accepted(f"old{number}"))
            await context.record(completed(f"old{number}"))
    async with home.context() as context:
        await context.record(accepted("new"))
        await run(context, "acme", Schedule())
        await settled(home)
        await export(context, "acme", tmp_path / "old.zip", evidence=KNOWN)
    return tmp_path / "old.zip"


async def test_records_that_expired_are_accounted_for_by_their_certificate(home: Home, old_pack: Path) -> None:
    code, report = verify(old_pack, "--key", home.key)
    assert (code, report["findings"], report["fields"]) == (0, [], {"expired": 6})


def blank(files: Files) -> None:
    rows = lines(files)
    rows[6] = b"\n"
    files["events.jsonl"] = b"".join(rows)


def strip_certificate(files: Files) -> None:
    del files[next(name for name in files if name.startswith("certificates/"))]


def forget_state(files: Files) -> None:
    files["fields.jsonl"] = b"".join(files["fields.jsonl"].splitlines(keepends=True)[1:])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (blank, "record 6: its content is missing, and no certificate says that it expired"),
        (strip_certificate, "is said to be erased, but certificate"),
        (forget_state, "record 0: its content is missing, and no certificate says that it expired"),
    ],
)
async def test_content_cannot_be_called_expired_without_a_certificate(
    home: Home, old_pack: Path, change: Callable[[Files], None], says: str
) -> None:
    code, report = verify(rewritten(old_pack, change, relist=home.signer), "--key", home.key)
    assert code == 1
    assert any(says in sentence for sentence in sentences(report)), sentences(report)
