from contextlib import closing
from dataclasses import replace

import pytest

from audit.anchor import Anchors, anchor, prove, verify_anchored
from audit.checkpoint import Checkpoint, open_checkpoint, origin_of
from audit.errors import VerificationFailed
from audit.merkle import EMPTY_ROOT
from tests.audit.conftest import Home, accepted, eventually


def last(home: Home, tenant: str) -> Checkpoint | None:
    with closing(home.reader()) as reader:
        notes = [one.note for one in reader.checkpoints(tenant)]
    return open_checkpoint(notes[-1], origin_of(home.key.name, tenant), home.key.public_key) if notes else None


async def test_every_tree_is_anchored_once_and_again_when_it_has_grown(home: Home) -> None:
    async with home.custody() as custody:
        for tenant in ("acme", "globex"):
            await custody.record(accepted("a", tenant))
        await eventually(lambda: all(last(home, tenant) for tenant in ("acme", "globex", "_system")))
        assert len(await anchor(custody)) == 3
        assert await anchor(custody) == []
        await custody.record(accepted("b"))
        await eventually(lambda: getattr(last(home, "acme"), "size", 0) == 2)
        assert len(await anchor(custody)) == 1
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
    async with home.custody() as custody:
        await custody.record(accepted("a"))
        await eventually(lambda: last(home, "acme") is not None)
        await anchor(custody)
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
    anchors = Anchors()
    async with home.custody() as custody:
        await custody.record(accepted("a"))
        await eventually(lambda: all(last(home, tenant) for tenant in ("acme", "_system")))
        assert len(await anchor(custody, anchors)) == 2
        assert await anchor(custody, anchors) == []
        assert (anchors.size, len(anchors.digests)) == (2, 2)
        await custody.record(accepted("b"))
        await eventually(lambda: getattr(last(home, "acme"), "size", 0) == 2)
        assert len(await anchor(custody, anchors)) == 1
        assert await anchor(custody) == [], "another process sees the same"
