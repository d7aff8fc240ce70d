"""Names of files in data folders that exist: they stay, whatever the databases are called in prose."""

from pathlib import Path

from audit.private.value_location import values_of
from audit.storage.location import record_of


def test_the_markers_keep_the_names_that_older_data_folders_have():
    folder = Path("/data/audit")
    assert record_of(folder / "log.db").marker == folder / "record.place"
    assert values_of(folder / "side.db").marker == folder / "side.place"
