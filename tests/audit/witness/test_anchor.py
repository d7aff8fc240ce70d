from contextlib import closing
from dataclasses import replace
from time import monotonic

import pytest

from audit.errors import VerificationFailed
from audit.log.receipt import Receipt
from audit.tree.merkle import EMPTY_ROOT
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint, origin_of
from audit.witness.anchor import LINK_EVERY_S, Anchors, anchor, prove, verify_anchored
from tests.audit.conftest import Home, accepted, eventually


def last(home: Home, tenant: str) -> Checkpoint | None:
    with closing(home.reader()) as reader:
        notes = [one.note for one in reader.checkpoints(tenant)]
    return open_checkpoint(notes[-1], origin_of(home.key.name, tenant), home.key.public_key) if notes else None


async def test_every_tree_is_anchored_once_and_again_when_it_has_grown(home: Home) -> None:
    linked = Anchors(linked_at=monotonic())  # the link would grow the log's own tree
    async with home.context() as context:
        for tenant in ("acme", "globex"):
            await context.record(accepted("a", tenant))
        await eventually(lambda: all(last(home, tenant) for tenant in ("acme", "globex", "_system")))
        assert len(await anchor(context, linked)) == 3
        assert await anchor(context, linked) == []
        await context.record(accepted("b"))
        await eventually(lambda: getattr(last(home, "acme"), "size", 0) == 2)
        assert len(await anchor(context, linked)) == 1
        seen = last(home, "acme")
    assert seen is not None
    with closing(home.reader()) as reader:
        found = prove(reader, home.key, seen)
        assert found.checkpoint.origin == origin_of(home.key.name, "_anchor")
        with pytest.raises(VerificationFailed, match="not anchored"):
            prove(reader, home.key, Checkpoint(seen.origin, 9, EMPTY_ROOT))
    assert "acme" not in str(home.events("_anchor"))
    assert home.verify().ok


async def test_an_anchor_of_something_else_is_refused(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
        await eventually(lambda: last(home, "acme") is not None)
        await anchor(context)
        seen = last(home, "acme")
    assert seen is not None
    with closing(home.reader()) as reader:
        found = prove(reader, home.key, seen)
    verify_anchored(found, seen, home.key)
    for wrong, checkpoint, why in [
        (found, Checkpoint(seen.origin, seen.size, EMPTY_ROOT), "another checkpoint"),
        (replace(found, leaf=found.leaf.replace(b"anchored", b"anchorex")), seen, "does not hold"),
        (replace(found, seq=found.seq + 1), seen, "does not hold"),
        (replace(found, note=found.note.replace("_anchor\n", "acme\n", 1)), seen, "does not hold"),
    ]:
        with pytest.raises(VerificationFailed, match=why):
            verify_anchored(wrong, checkpoint, home.key)


async def test_what_was_read_in_one_turn_is_not_read_again_in_the_next(home: Home) -> None:
    anchors = Anchors(linked_at=monotonic())
    async with home.context() as context:
        await context.record(accepted("a"))
        await eventually(lambda: all(last(home, tenant) for tenant in ("acme", "_system")))
        assert len(await anchor(context, anchors)) == 2
        assert await anchor(context, anchors) == []
        assert (anchors.size, len(anchors.digests)) == (2, 2)
        await context.record(accepted("b"))
        await eventually(lambda: getattr(last(home, "acme"), "size", 0) == 2)
        assert len(await anchor(context, anchors)) == 1
        assert await anchor(context, Anchors(linked_at=monotonic())) == [], "another process sees the same"


async def test_the_logs_own_tree_vouches_for_the_anchor_once_an_hour(home: Home) -> None:
    anchors, told = Anchors(), list[list[Receipt]]()
    async with home.context() as context:
        for number in range(2):
            await context.record(accepted(f"r{number}"))
            await eventually(lambda size=number + 1: getattr(last(home, "acme"), "size", 0) == size)
            told.append(await anchor(context, anchors))
        assert anchors.linked_at is not None
        anchors.linked_at -= LINK_EVERY_S
        await context.record(accepted("r2"))
        await eventually(lambda: getattr(last(home, "acme"), "size", 0) == 3)
        told.append(await anchor(context, anchors))
    assert all(told)
    links = [event for event in home.events("_system") if event["type"] == "system.anchored"]
    assert [(link["size"], link["leaf_hash"]) for link in links] == [
        (receipts[-1].seq + 1, receipts[-1].leaf_hash.hex()) for receipts in (told[0], told[2])
    ]
