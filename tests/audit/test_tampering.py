"""Changes to a data folder behind the log's back: each is found by `domicile audit verify`, or named as out of reach.

`docs/audit-format.md`, section 5, lists what is out of reach, and why.
"""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from audit.cli.app import app
from audit.events.anchor import CheckpointCosigned
from audit.events.canonical import canonicalize
from audit.events.private_value import Private
from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditSettings
from audit.log.checkpointer import Cadence
from audit.private.erasure import erase
from audit.tree.cosignature import WitnessKey, cosign
from audit.tree.merkle import Frontier, leaf_hash
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import Checkpoint, origin_of, sign_checkpoint
from audit.verification.attestations import cosignature_of, text_digest
from audit.witness.anchor import anchor
from tests.audit.conftest import FAST, Home, accepted, completed, eventually

SHELL = CliRunner()
NODE = "gw-1"


async def _write(home: Home) -> None:
    """Two tenants, three persons of whom one was erased, anchors, a witness over the anchor; closed in order."""
    witness = FileSigner.open(home.path.parent.parent / "witness.key", name="example.com/witness")
    key = WitnessKey(witness.name, witness.public_key)
    async with home.context() as context:
        for number, person in enumerate(("ada", "bob", "cy")):
            values = Private({"input": f"prompt {number}"}, subject=f"{person}@example.org")
            await context.record(accepted(f"r{number}"), values)
            await context.record(completed(f"r{number}"))
        await context.record(accepted("g", "globex"))
        await erase(context, "acme", subject="bob@example.org", actor="cli", reason="request")
        for tree in ("acme", "globex"):  # what is not signed yet would not be anchored
            await eventually(lambda tree=tree: _signed(home, tree) == _size(home, tree))
        await anchor(context)
        await eventually(lambda: _signed(home, "_anchor") == _size(home, "_anchor"))
        with closing(home.reader()) as reader:
            last = reader.last_checkpoint("_anchor")
        assert last is not None
        note = last.note + cosign(last.note.partition("\n\n")[0] + "\n", witness.name, witness, 1_790_000_000)
        (home.path.parent / "witnessed").mkdir()
        (home.path.parent / "witnessed" / "_anchor-example.com-witness.note").write_text(note, encoding="utf-8")
        seen = {"size": last.size, "checkpoint_sha256": text_digest(note), "witness": witness.name}
        await context.record(CheckpointCosigned(tenant="_anchor", cosignature=cosignature_of(note, key), **seen))


def _signed(home: Home, tenant: str) -> int:
    with closing(home.reader()) as reader:
        last = reader.last_checkpoint(tenant)
    return last.size if last else 0


def _size(home: Home, tenant: str) -> int:
    with closing(home.reader()) as reader:
        return reader.head(tenant)[0]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    asyncio.run(_write(Home(folder)))
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def verify(folder: Path, *arguments: str) -> Result:
    """A little later: within two seconds of its stop a gateway may still be signing."""
    later = () if "--as-of" in arguments else ("--as-of", f"{datetime.now(UTC) + timedelta(seconds=5):%FT%TZ}")
    return SHELL.invoke(app, ["verify", "--data", str(folder), *later, *arguments], terminal_width=300, color=False)


class Insider:
    """Edits the files of a folder; with the signing key, if that is asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "audit"
        self.log = sqlite3.connect(self.folder / "log.db", isolation_level=None)
        self.side = sqlite3.connect(self.folder / "side.db", isolation_level=None)

    def close(self) -> None:
        self.log.close()
        self.side.close()

    def tree(self, tenant: str) -> int:
        return int(self.log.execute("SELECT id FROM tree WHERE tenant = ?", (tenant,)).fetchone()[0])

    def payload(self, tenant: str, seq: int) -> bytes:
        query = "SELECT payload FROM leaf WHERE tree = ? AND seq = ?"
        return bytes(self.log.execute(query, (self.tree(tenant), seq)).fetchone()[0])

    def edit(self, tenant: str, seq: int, **fields: object) -> None:
        payload = canonicalize(json.loads(self.payload(tenant, seq)) | fields)
        self.log.execute("UPDATE leaf SET payload = ? WHERE tree = ? AND seq = ?", (payload, self.tree(tenant), seq))

    def append(self, tenant: str, **fields: object) -> None:
        size = self.log.execute("SELECT size FROM tree WHERE tenant = ?", (tenant,)).fetchone()[0]
        payload = canonicalize(json.loads(self.payload(tenant, size - 1)) | fields)
        self.log.execute("INSERT INTO leaf VALUES (?, ?, x'', ?)", (self.tree(tenant), size, payload))
        self.rehash(tenant)

    def rehash(self, tenant: str) -> bytes:
        """Hashes and head follow from the payloads; returns the root."""
        tree, frontier = self.tree(tenant), Frontier()
        query = "SELECT rowid, hash, payload FROM leaf WHERE tree = ? ORDER BY seq"
        for rowid, old, payload in self.log.execute(query, (tree,)).fetchall():
            made = leaf_hash(payload) if payload else old
            frontier.append(made)
            self.log.execute("UPDATE leaf SET hash = ? WHERE rowid = ?", (made, rowid))
        self.log.execute("UPDATE tree SET size = ?, frontier = ? WHERE id = ?", (frontier.size, bytes(frontier), tree))
        return frontier.root()

    def resign(self, tenant: str) -> None:
        """One checkpoint over the whole tree, with the real key."""
        signer = FileSigner.open(self.folder / "signer.key")
        size = self.log.execute("SELECT size FROM tree WHERE tenant = ?", (tenant,)).fetchone()[0]
        note = sign_checkpoint(Checkpoint(origin_of(signer.name, tenant), size, self.rehash(tenant)), signer)
        self.log.execute("DELETE FROM checkpoint WHERE tree = ?", (self.tree(tenant),))
        self.log.execute("INSERT INTO checkpoint VALUES (?, ?, ?)", (self.tree(tenant), size, note))

    def drop(self, tenant: str) -> None:
        tree = self.tree(tenant)
        for table in ("leaf", "checkpoint", "open_intent"):
            self.log.execute(f"DELETE FROM {table} WHERE tree = ?", (tree,))
        self.log.execute("DELETE FROM tree WHERE id = ?", (tree,))

    def cut(self, tenant: str, size: int) -> None:
        self.log.execute("DELETE FROM leaf WHERE tree = ? AND seq >= ?", (self.tree(tenant), size))
        self.log.execute("DELETE FROM checkpoint WHERE tree = ? AND size > ?", (self.tree(tenant), size))
        self.rehash(tenant)


@pytest.fixture
def insider(folder: Path) -> Iterator[Insider]:
    made = Insider(folder)
    yield made
    made.close()


def test_a_folder_that_nobody_touched_holds_with_every_value_opened(folder: Path) -> None:
    key = FileSigner.open(folder / "witness.key")
    done = verify(folder, "--keys", "--witness", str(WitnessKey(key.name, key.public_key)))
    assert done.exit_code == 0, done.output
    assert "4 disclosed, 2 erased" in done.output


def change_a_payload(insider: Insider) -> None:
    insider.edit("acme", 1, tokens_out=1)


def delete_a_record(insider: Insider) -> None:
    insider.log.execute("DELETE FROM leaf WHERE tree = ? AND seq = 2", (insider.tree("acme"),))


def swap_two_records(insider: Insider) -> None:
    for old, new in ((0, -1), (1, 0), (-1, 1)):
        insider.log.execute("UPDATE leaf SET seq = ? WHERE tree = ? AND seq = ?", (new, insider.tree("acme"), old))
    insider.rehash("acme")


def append_a_duplicate(insider: Insider) -> None:
    insider.append("acme")


def cut_the_tail(insider: Insider) -> None:
    insider.cut("acme", 3)


def swap_two_tenants(insider: Insider) -> None:
    for old, new in (("acme", "x"), ("globex", "acme"), ("x", "globex")):
        insider.log.execute("UPDATE tree SET tenant = ? WHERE tenant = ?", (new, old))


def resign_all_with_another_key(insider: Insider) -> None:
    name = FileSigner.open(insider.folder / "signer.key").name
    for file in ("signer.key", "signer.vkey"):
        (insider.folder / file).unlink()
    other = FileSigner.open(insider.folder / "signer.key", name=name)
    (insider.folder / "signer.vkey").write_text(str(VerifierKey(other.name, other.public_key)))
    for tenant in ("acme", "globex", "_system", "_anchor"):
        insider.resign(tenant)


def overwrite_a_ciphertext(insider: Insider) -> None:
    insider.side.execute("UPDATE value SET ciphertext = zeroblob(length(ciphertext)) WHERE field = 'input' AND seq = 0")


def move_a_ciphertext(insider: Insider) -> None:
    insider.side.execute(
        "UPDATE value SET (nonce, ciphertext, key_id) ="
        " (SELECT nonce, ciphertext, key_id FROM value WHERE seq = 4 AND field = 'input')"
        " WHERE seq = 0 AND field = 'input'"
    )


def delete_a_value(insider: Insider) -> None:
    insider.side.execute("DELETE FROM value WHERE seq = 4 AND field = 'input'")


def delete_all_data_keys(insider: Insider) -> None:
    insider.side.execute("PRAGMA foreign_keys=OFF")
    insider.side.execute("DELETE FROM data_key")


def delete_the_tenants_key(insider: Insider) -> None:
    (insider.folder / "keys" / "acme.kek").unlink()


def remove_a_certificate(insider: Insider) -> None:
    insider.side.execute("DELETE FROM deletion")


def widen_a_certificate(insider: Insider) -> None:
    (body,) = insider.side.execute("SELECT body FROM deletion").fetchone()
    signer = FileSigner.open(insider.folder / "signer.key")
    wider = json.loads(body)
    wider["covered"] = {field: [[0, 4]] for field in wider["covered"]}
    from audit.private.certificate import Certificate, sign_certificate

    note = sign_certificate(Certificate.parse(canonicalize(wider)), origin_of(signer.name, "acme"), signer)
    insider.side.execute("UPDATE deletion SET body = ?, certificate = ?", (canonicalize(wider).decode(), note))
    insider.side.execute("DELETE FROM value")


def change_a_time(insider: Insider) -> None:
    insider.edit("acme", 1, ts="2026-01-01T00:00:00.000Z")
    insider.rehash("acme")


def remove_the_anchor(insider: Insider) -> None:
    insider.drop("_anchor")


def remove_the_anchor_and_what_witnesses_said(insider: Insider) -> None:
    insider.drop("_anchor")
    shutil.rmtree(insider.folder / "witnessed")


def shorten_the_anchor(insider: Insider) -> None:
    shutil.rmtree(insider.folder / "witnessed")
    insider.cut("_anchor", 1)
    insider.resign("_anchor")


def remove_the_cosignatures(insider: Insider) -> None:
    shutil.rmtree(insider.folder / "witnessed")


def put_an_older_cosignature_back(insider: Insider) -> None:
    (file,) = (insider.folder / "witnessed").iterdir()
    file.write_text(file.read_text().rpartition("\u2014 ")[0])


def rewrite_with_the_real_key(insider: Insider) -> None:
    insider.edit("acme", 1, tokens_out=1)
    insider.resign("acme")


def rewrite_and_anchor_with_the_real_key(insider: Insider) -> None:
    rewrite_with_the_real_key(insider)
    shutil.rmtree(insider.folder / "witnessed")
    tree = insider.tree("acme")
    (note,) = insider.log.execute("SELECT note FROM checkpoint WHERE tree = ?", (tree,)).fetchone()
    size = insider.log.execute("SELECT size FROM tree WHERE tenant = '_anchor'").fetchone()[0]
    for seq in range(size):
        if b"anchored" in insider.payload("_anchor", seq):
            insider.edit("_anchor", seq, checkpoint_sha256=text_digest(note))
    insider.resign("_anchor")


def empty_a_record_as_if_expired(insider: Insider) -> None:
    insider.log.execute("UPDATE leaf SET payload = x'' WHERE tree = ? AND seq = 3", (insider.tree("acme"),))


def remove_all_checkpoints_of_a_tree(insider: Insider) -> None:
    insider.log.execute("DELETE FROM checkpoint WHERE tree = ?", (insider.tree("acme"),))


def remove_all_checkpoints(insider: Insider) -> None:
    insider.log.execute("DELETE FROM checkpoint")


def remove_checkpoints_and_change_a_record(insider: Insider) -> None:
    insider.edit("acme", 0, inference_country="DE")
    insider.rehash("acme")
    remove_all_checkpoints_of_a_tree(insider)


def remove_an_anchored_checkpoint(insider: Insider) -> None:
    insider.resign("globex")
    insider.append("globex", request_id="h", type="inference.accepted")
    insider.resign("globex")


def forge_an_open_intent(insider: Insider) -> None:
    insider.log.execute("INSERT INTO open_intent VALUES (?, 'req-x', 0, 'gw-1', 'boot')", (insider.tree("acme"),))


def append_a_forged_event(insider: Insider) -> None:
    insider.append("globex", request_id="forged", ts="2026-11-28T22:00:00.000Z")


def append_a_forged_event_of_a_boot_that_never_was(insider: Insider) -> None:
    insider.append("globex", request_id="forged", boot_id="01a22457-e05c-7000-8000-931615538100")


CAUGHT: list[tuple[Callable[[Insider], None], str]] = [
    (change_a_payload, "acme, record 1: its content hashes to"),
    (delete_a_record, "record 2 is missing"),
    (swap_two_records, "has no open intent"),
    (append_a_duplicate, "the boot that wrote them closed the log"),
    (cut_the_tail, "the witness example.com/witness|it vouches for a checkpoint that no tree has"),
    (swap_two_tenants, "no known key signed the note"),
    (overwrite_a_ciphertext, "input of record 0 was changed in the value store"),
    (move_a_ciphertext, "input of record 0 was changed in the value store"),
    (delete_a_value, "acme, record 4: input: it or its key is not kept and no certificate"),
    (delete_all_data_keys, "it or its key is not kept and no certificate"),
    (delete_the_tenants_key, "the key of tenant acme, is missing"),
    (remove_a_certificate, "acme, record 2: input: it or its key is not kept and no certificate"),
    (widen_a_certificate, "no record announces the certificate"),
    (change_a_time, "something in records"),
    (remove_the_anchor, "the anchor has 0 records, but a record says that it had"),
    (remove_the_anchor_and_what_witnesses_said, "the anchor has 0 records, but a record says that it had"),
    (shorten_the_anchor, "the anchor has 1 records, but a record says that it had"),
    (remove_the_cosignatures, "the witness example.com/witness cosigned size"),
    (put_an_older_cosignature_back, "bears no cosignature"),
    (rewrite_with_the_real_key, "it vouches for a checkpoint that no tree has"),
    (rewrite_and_anchor_with_the_real_key, "is another than the one this record vouches for"),
    (empty_a_record_as_if_expired, "1 records have no content, but only 0 are on record as expired"),
    (remove_all_checkpoints_of_a_tree, "the boot that wrote them closed the log"),
    (remove_all_checkpoints, "the boot that wrote them closed the log"),
    (remove_checkpoints_and_change_a_record, "the boot that wrote them closed the log"),
    (remove_an_anchored_checkpoint, "it vouches for a checkpoint that no tree has"),
    (forge_an_open_intent, "request req-x is listed as open"),
    (append_a_forged_event, "the boot that wrote them closed the log"),
    (append_a_forged_event_of_a_boot_that_never_was, "no record says that boot"),
]


@pytest.mark.parametrize(("attack", "why"), CAUGHT, ids=lambda one: getattr(one, "__name__", ""))
def test_this_change_is_found(insider: Insider, folder: Path, attack: Callable[[Insider], None], why: str) -> None:
    attack(insider)
    done = verify(folder, "--keys")
    assert done.exit_code == 1, done.output
    assert any(part in done.output for part in why.split("|")), done.output


@pytest.mark.parametrize("attack", [overwrite_a_ciphertext, move_a_ciphertext, delete_the_tenants_key])
def test_what_only_the_keys_can_show_passes_without_them(
    insider: Insider, folder: Path, attack: Callable[[Insider], None]
) -> None:
    attack(insider)
    assert verify(folder).exit_code == 0


def test_a_log_signed_anew_by_another_key_does_not_hold_under_the_key_kept_elsewhere(
    insider: Insider, folder: Path
) -> None:
    held = (folder / "audit" / "signer.vkey").read_text()
    resign_all_with_another_key(insider)
    done = verify(folder, "--public-key", held)
    assert done.exit_code == 1
    assert "no known key signed the note" in done.output
    assert verify(folder).exit_code == 1, "the witness's note is still under the first key"


# --- out of reach of the folder alone --------------------------------------------------------------------------------


async def test_a_folder_put_back_to_an_earlier_copy_needs_a_checkpoint_kept_elsewhere(
    folder: Path, tmp_path: Path
) -> None:
    earlier = shutil.copytree(folder, tmp_path / "earlier")
    home = Home(folder)
    async with home.context() as context:
        await context.record(accepted("later"))
    with closing(home.reader()) as reader:
        last = reader.last_checkpoint("acme")
    assert last is not None
    held = tmp_path / "held.txt"
    held.write_text(last.note)
    assert verify(earlier).exit_code == 0
    done = verify(earlier, "--checkpoint", str(held))
    assert done.exit_code == 1
    assert "but the checkpoint you hold of size" in done.output


def test_all_trees_rewritten_with_the_real_key_need_a_witness_or_a_checkpoint(insider: Insider, folder: Path) -> None:
    rewrite_and_anchor_with_the_real_key(insider)
    last = insider.log.execute("SELECT size FROM tree WHERE tenant = '_anchor'").fetchone()[0] - 1
    keep = [seq for seq in range(last + 1) if b"anchored" in insider.payload("_anchor", seq)]
    insider.log.execute("DELETE FROM leaf WHERE tree = ? AND seq > ?", (insider.tree("_anchor"), max(keep)))
    insider.resign("_anchor")
    size = insider.log.execute("SELECT size FROM tree WHERE tenant = '_system'").fetchone()[0]
    for seq in range(size):
        if b'"system.anchored"' in insider.payload("_system", seq):
            hashed = leaf_hash(insider.payload("_anchor", max(keep))).hex()
            insider.edit("_system", seq, size=max(keep) + 1, leaf_hash=hashed)
    # The other trees' anchors were overwritten too: they have to be signed as the anchor now says.
    insider.resign("_system")
    for seq in keep:
        insider.edit("_anchor", seq, checkpoint_sha256=_digest(insider, "acme"))
    insider.resign("_anchor")
    hashed = leaf_hash(insider.payload("_anchor", max(keep))).hex()
    for seq in range(size):
        if b'"system.anchored"' in insider.payload("_system", seq):
            insider.edit("_system", seq, leaf_hash=hashed)
    insider.resign("_system")
    assert verify(folder).exit_code == 0
    witness = FileSigner.open(folder / "witness.key")
    done = verify(folder, "--witness", str(WitnessKey(witness.name, witness.public_key)))
    assert done.exit_code == 1
    assert "has cosigned no checkpoint that is beside this log" in done.output


def _digest(insider: Insider, tenant: str) -> str:
    (note,) = insider.log.execute("SELECT note FROM checkpoint WHERE tree = ?", (insider.tree(tenant),)).fetchone()
    return text_digest(note)


def test_a_copy_of_the_log_file_alone_warns_about_notes_that_are_not_beside_it(folder: Path, tmp_path: Path) -> None:
    for name in ("log.db", "signer.vkey"):
        shutil.copy(folder / "audit" / name, tmp_path / name)
    done = SHELL.invoke(app, ["verify", "--log", str(tmp_path / "log.db")], terminal_width=300)
    assert done.exit_code == 0, done.output
    assert "warning: _anchor" in done.output


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["--sample", "1"], 2, "--sample needs --keys"),
        (["--as-of", "yesterday"], 2, "is no moment"),
        (["--witness", "nonsense"], 1, "a witness key has another form; give name+key id+base64"),
    ],
)
def test_bad_arguments_are_named(folder: Path, arguments: list[str], status: int, why: str) -> None:
    done = verify(folder, *arguments)
    assert done.exit_code == status
    assert why in done.output


def test_a_sample_opens_values_of_so_many_records(folder: Path) -> None:
    done = verify(folder, "--keys", "--sample", "1")
    assert done.exit_code == 0, done.output
    assert "2 disclosed, 2 erased, 2 withheld" in done.output


async def test_a_copy_of_a_running_log_holds_as_of_the_time_at_which_it_was_made(tmp_path: Path) -> None:
    home = Home(tmp_path / "running")
    slow = AuditSettings(limits=FAST.limits, cadence=Cadence(every_s=60))
    async with await home.open(settings=slow) as log:
        await log.append(accepted("r1"))
        made = datetime.now(UTC)
        copy = tmp_path / "copy"
        (copy / "audit").mkdir(parents=True)
        shutil.copy(home.path.with_name("signer.vkey"), copy / "audit")
        with closing(sqlite3.connect(home.path)) as running, closing(sqlite3.connect(copy / "audit" / "log.db")) as to:
            running.backup(to)
    assert verify(copy, "--as-of", f"{made:%FT%TZ}").exit_code == 0
    late = verify(copy, "--as-of", f"{made + timedelta(minutes=7):%FT%TZ}")
    assert late.exit_code == 1
    assert "they have gone unsigned for" in late.output
    assert "give the time at which it was made (--as-of)" in late.output
