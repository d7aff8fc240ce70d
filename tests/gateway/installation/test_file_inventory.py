"""Files that are made once, while another process makes them."""

import pytest

from audit.errors import KeyProviderError
from gateway.installation.file_inventory import FilesMadeOnce


class Files:
    """Secret files as they are without encryption."""

    def read(self, path):
        return path.read_bytes()

    def create(self, path, content):
        if not path.exists():
            path.write_bytes(content)
        return path.read_bytes()


class Inventory:
    """Lists a file; `meanwhile` is what another process does before it says so."""

    def __init__(self, meanwhile=lambda path: None):
        self.meanwhile = meanwhile

    def lists(self, path):
        self.meanwhile(path)
        return True

    def is_of_before(self, path, content):
        return True


def test_a_file_that_another_process_makes_and_lists_between_two_looks_is_taken(tmp_path):
    files = FilesMadeOnce(Files(), Inventory(lambda path: path.write_bytes(b"theirs")))
    assert files.create(tmp_path / "pepper", b"ours") == b"theirs"


def test_a_listed_file_that_is_not_there_is_not_made_again(tmp_path):
    with pytest.raises(KeyProviderError, match="pepper"):
        FilesMadeOnce(Files(), Inventory()).create(tmp_path / "pepper", b"ours")
    assert not (tmp_path / "pepper").exists()
