"""Changes of a real log, found among calls, whether their places are noted or not."""

import pytest

from audit.events.event import AdminChanged
from audit.events.event_types import OCSF_CLASSES
from audit.events.incident import Oversight
from audit.log.changes import TYPES, ChangeFilter, change, change_types, changes, none_noted, types_of
from tests.audit.conftest import accepted, completed

ON_BOTH_STORES = True
ALL = types_of(None)


def changed(kind, actor="key:aaaaaaaa", **more):
    fields = {"type": f"admin.{kind}", "tenant": "acme", "actor": actor, "target": "main", "epoch": 1, **more}
    return AdminChanged.model_validate(fields)


@pytest.fixture
async def reader(home):
    """Four changes of acme with calls between them, a sign-in, and a change of globex."""
    async with await home.open() as log:
        await log.append(changed("project.created", project="main"))  # 0
        await log.append(accepted("a"))
        await log.append(completed("a"))
        await log.append(changed("policy.activated", "key:bbbbbbbb", detail={"version": "2"}))  # 3
        await log.append(changed("session.opened"))  # 4
        await log.append(Oversight(type="oversight.stopped", tenant="acme", actor="cli", project="main", reason="test"))
        await log.append(accepted("b", model_requested='"type":"admin.key.created"'))
        await log.append(changed("key.created", tenant="globex"))
        await log.append(changed("key.revoked"))  # 7 of acme
        reader = home.reader()
        yield reader
        reader.close()


def noted(upto, most=None):
    """As the index says: the first `upto` records were read."""

    def newest(reader, tenant, types, first, end, limit):
        found = [seq for seq, kind in change_types(reader, tenant, first, min(end, upto)) if kind in types]
        return upto, found[::-1][: most or limit]

    return newest


def seqs(page):
    return [line.seq for line in page.changes]


@pytest.mark.parametrize("newest", [none_noted, noted(0), noted(4), noted(8)])
async def test_the_newest_changes_come_first_however_far_they_are_noted(reader, newest):
    page = changes(reader, "acme", ChangeFilter(ALL), newest)
    assert seqs(page) == [7, 5, 3, 0] and page.before is None
    last, stop, policy, _ = page.changes
    assert (stop.what, stop.kind, stop.actor, stop.reason) == ("main", "oversight", "cli", "test")
    assert (policy.kind, policy.more) == ("policies", {"version": "2"})
    assert (last.type, last.kind) == ("admin.key.revoked", "keys")


@pytest.mark.parametrize("newest", [none_noted, noted(4), noted(8)])
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
async def test_pages_repeat_and_skip_nothing(reader, newest, limit):
    seen, before = [], None
    for _ in range(10):
        page = changes(reader, "acme", ChangeFilter(ALL), newest, before=before, limit=limit)
        seen += seqs(page)
        before = page.before
        if before is None:
            break
    assert seen == [7, 5, 3, 0] and before is None


@pytest.mark.parametrize(("scanned", "read"), [(1, 500), (2, 1), (8192, 1), (3, 2)])
async def test_a_page_that_reads_little_says_where_to_go_on(reader, monkeypatch, scanned, read):
    monkeypatch.setattr("audit.log.changes.MAX_SCANNED", scanned)
    monkeypatch.setattr("audit.log.changes.MAX_READ", read)
    for upto in (0, 4, 8):
        seen, before = [], None
        for _ in range(20):
            page = changes(reader, "acme", ChangeFilter(ALL), noted(upto, read), before=before)
            seen += seqs(page)
            before = page.before
            if before is None:
                break
        assert (seen, before) == ([7, 5, 3, 0], None)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (ChangeFilter(types_of("policies")), [3]),
        (ChangeFilter(types_of("sessions")), [4]),
        (ChangeFilter(types_of("incidents")), []),
        (ChangeFilter(ALL, actors={"key:bbbbbbbb"}), [3]),
        (ChangeFilter(ALL, actors={"cli", "key:bbbbbbbb"}), [5, 3]),
        (ChangeFilter(ALL, actors={"key:bbbbbbb"}), []),
        (ChangeFilter(ALL, actors=frozenset()), []),
        (ChangeFilter(ALL, since="2999"), []),
        (ChangeFilter(ALL, until="2000"), []),
        (ChangeFilter(ALL, since="2000", until="2999"), [7, 5, 3, 0]),
    ],
)
async def test_only_what_is_asked_for_is_found(reader, wanted, found):
    for newest in (none_noted, noted(4), noted(8)):
        assert seqs(changes(reader, "acme", wanted, newest)) == found


async def test_a_call_that_names_a_change_is_none_and_another_tenants_are_not_there(reader):
    assert change(reader, "acme", 6) is None
    assert change(reader, "acme", 99) is None
    assert change(reader, "acme", 3)[1]["type"] == "admin.policy.activated"
    assert seqs(changes(reader, "globex", ChangeFilter(ALL))) == [0]
    assert seqs(changes(reader, "nobody", ChangeFilter(ALL))) == []


def test_every_act_of_an_administrator_is_of_a_kind_and_no_read_is():
    """Replicas are the launcher's."""
    admin = {kind for kind in OCSF_CLASSES if kind.startswith("admin.")}
    assert {kind for kind in admin if kind not in TYPES} == {
        f"admin.replica.{each}" for each in ("starting", "ready", "asleep", "draining", "stopped", "failed")
    }
    assert not [kind for kind in TYPES if "read" in kind.rpartition(".")[2] or "accessed" in kind]
