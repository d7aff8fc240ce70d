"""What trees and other parties attest of each other, on SQLite and on PostgreSQL: removed alone, it is missed."""

from contextlib import closing
from pathlib import Path

import pytest

from audit.events.anchor import CheckpointCosigned
from audit.storage.attested_files import files_beside
from audit.verification.attestations import Attestations, system_facts, unmatched_anchors
from audit.verification.verify import Expected, Report, verify_log
from audit.witness.anchor import anchor
from tests.audit.conftest import Home, accepted, eventually

ON_BOTH_STORES = True


@pytest.fixture
async def anchored(home: Home) -> Home:
    async with home.context() as context:
        await context.record(accepted("a"))
        await eventually(lambda: signed(home, "acme"))
        await anchor(context)
        gone = {"size": 1, "checkpoint_sha256": "0" * 64, "witness": "example.com/w", "cosignature": "x"}
        await context.record(CheckpointCosigned(tenant="acme", **gone))
    return home


def signed(home: Home, tenant: str) -> bool:
    with closing(home.reader()) as reader:
        last = reader.last_checkpoint(tenant)
        return last is not None and last.size == reader.head(tenant)[0]


def judged(home: Home, *, notes: bool = False) -> Report:
    with closing(home.reader()) as reader:
        beside = Attestations.read(files_beside(home.path.parent), home.key) if notes else None
        return verify_log(reader, home.key, expected=Expected(attestations=beside))


def said(report: Report, check: str) -> list[str]:
    return [one.says for one in report.findings if one.check == check]


OF = "tree = (SELECT id FROM tree WHERE tenant = '{}')"


def test_boots_and_links_are_read_from_the_logs_own_tree(anchored: Home) -> None:
    with closing(anchored.reader()) as reader:
        facts = system_facts(reader)
        assert unmatched_anchors(reader) == []
    assert len(facts.boots.started) == len(facts.boots.stopped) == 1
    assert [link.size for link in facts.links] == [anchored.types("_anchor").count("checkpoint.anchored")]


def test_a_checkpoint_that_is_gone_is_missed_by_the_anchor(anchored: Home) -> None:
    anchored.execute("DELETE FROM checkpoint WHERE size = 1 AND " + OF.format("acme"))
    assert said(judged(anchored), "anchor") == [
        "it vouches for a checkpoint that no tree has: history was rewritten, or checkpoints were removed"
    ]


def test_an_anchor_that_is_gone_is_missed_by_the_logs_own_tree(anchored: Home) -> None:
    for table in ("leaf", "checkpoint"):
        anchored.execute(f"DELETE FROM {table} WHERE " + OF.format("_anchor"))
    anchored.execute("DELETE FROM tree WHERE tenant = '_anchor'")
    (told,) = said(judged(anchored), "anchor")
    assert told.startswith("the anchor has 0 records, but a record says that it had")


def test_a_cosignature_on_record_has_to_be_of_a_checkpoint_of_the_tree_and_its_note_has_to_be_there(
    anchored: Home,
) -> None:
    told = said(judged(anchored, notes=True), "witness")
    assert told[0] == "it names a checkpoint of size 1 that this tree does not have"
    assert told[1].startswith("the witness example.com/w cosigned size 1, and its note is not in witnessed/")
    assert len(said(judged(anchored), "witness")) == 1, "notes that nobody looks for are not missed"


@pytest.mark.parametrize("payload", ['{"type":"system.stop"}', '{"type":"system.start","boot_id":1}', "[]", "x"])
def test_what_is_no_record_of_a_boot_is_left_to_the_walk(anchored: Home, payload: str, tmp_path: Path) -> None:
    anchored.execute(f"UPDATE leaf SET payload = '{payload}' WHERE seq = 0 AND " + OF.format("_system"))
    assert said(judged(anchored), "hash")
