import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from audit.files.secret_file import LoosePermissions, create_secret, read_secret, write_secret


def test_a_secret_is_readable_by_its_owner_alone(tmp_path):
    path = tmp_path / "keys" / "pepper"
    write_secret(path, b"s")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret(path) == b"s"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_secret_others_may_touch_is_refused(tmp_path, mode):
    path = tmp_path / "pepper"
    write_secret(path, b"s")
    path.chmod(mode)
    with pytest.raises(LoosePermissions, match="chmod 600"):
        read_secret(path)


def test_creating_never_replaces_and_all_creators_agree(tmp_path):
    path = tmp_path / "pepper"
    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(lambda n: create_secret(path, bytes([n])), range(32)))
    assert len(seen) == 1
    assert seen == {read_secret(path)}
    assert [p.name for p in tmp_path.iterdir()] == ["pepper"]


def test_an_absent_secret_is_an_error_of_its_own(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_secret(tmp_path / "none")
