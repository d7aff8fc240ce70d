"""The look before and after each commit: it costs one call where nothing has changed, and overlooks no replacement."""

import os
import shutil
import sqlite3
import time
from contextlib import closing

import pytest

from audit.storage import file_watch
from audit.storage.file_watch import FileWatch
from audit.storage.watched import StoreReplaced


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "data"
    made.mkdir()
    with closing(sqlite3.connect(made / "x.db")) as db:
        db.execute("CREATE TABLE t (x)")
    shutil.copytree(made, tmp_path / "copy")  # before it is open: closing a copy's descriptor would drop its locks
    return made


@pytest.fixture(params=["settled", "fresh"])
def watch(folder, request, monkeypatch):
    """`settled`: of a folder whose last change is long ago; `fresh`: of one that was changed just now."""
    if request.param == "settled":
        monkeypatch.setattr(file_watch, "SETTLED_NS", 0)
    made = FileWatch(folder / "x.db", "x.db")
    time.sleep(0.05)  # later than the change time of the folder, which counts in ticks of the kernel
    made.look()
    made.look()
    yield made
    made.close()


def removed(folder):
    os.unlink(folder / "x.db")


def replaced(folder):
    os.replace(folder.parent / "copy" / "x.db", folder / "x.db")


def moved_and_copied_back(folder):
    os.rename(folder / "x.db", folder / "old")
    os.rename(folder.parent / "copy" / "x.db", folder / "x.db")


def without_its_wal(folder):
    os.unlink(folder / "x.db-wal")


def folder_replaced(folder):
    os.rename(folder, folder.parent / "before")
    os.rename(folder.parent / "copy", folder)


def folder_removed(folder):
    os.rename(folder, folder.parent / "before")


def clock_of_the_folder_set_back(folder):
    times = os.stat(folder)
    replaced(folder)
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [removed, replaced, moved_and_copied_back, without_its_wal, folder_replaced, folder_removed,
     clock_of_the_folder_set_back],
)  # fmt: skip
def test_whatever_is_done_to_the_files_is_seen_by_the_next_look(watch, folder, change):
    change(folder)
    with pytest.raises(StoreReplaced):
        watch.look()
    with pytest.raises(StoreReplaced):  # and by each one after it
        watch.look()


def test_other_files_that_come_and_go_are_no_trouble(watch, folder):
    (folder / "other").write_bytes(b"")
    watch.look()
    os.unlink(folder / "other")
    watch.look()
    watch.look_closely()


def counted(monkeypatch):
    asked = []
    stat = os.stat
    monkeypatch.setattr(file_watch.os, "stat", lambda path, **more: asked.append(path) or stat(path, **more))
    return asked


def test_a_look_at_a_folder_without_changes_asks_for_the_folder_alone(watch, folder, monkeypatch):
    monkeypatch.setattr(file_watch, "SETTLED_NS", 0)
    watch.look()
    asked = counted(monkeypatch)
    watch.look()
    assert asked == [str(folder)]
    watch.look_closely()
    assert str(folder / "x.db") in asked, "a round looks at the files whatever the folder says"


def test_a_change_that_is_too_young_to_tell_from_another_one_is_not_relied_on(folder, monkeypatch):
    monkeypatch.setattr(file_watch, "SETTLED_NS", 3600_000_000_000)
    watch = FileWatch(folder / "x.db", "x.db")
    watch.look()
    asked = counted(monkeypatch)
    watch.look()
    assert len(asked) == 4
    watch.close()


def test_behind_a_link_the_files_themselves_are_looked_at(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(file_watch, "SETTLED_NS", 0)
    elsewhere = tmp_path / "volume"
    elsewhere.mkdir()
    os.rename(folder / "x.db", elsewhere / "x.db")
    (folder / "x.db").symlink_to(elsewhere / "x.db")
    watch = FileWatch(folder / "x.db", "x.db")
    watch.look()
    replaced(elsewhere)
    with pytest.raises(StoreReplaced):
        watch.look()
    watch.close()
