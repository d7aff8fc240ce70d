import stat

import pytest

from gateway.identity.keys import KeyHasher, generate_key
from gateway.identity.pepper import StillNeeded, begin_rotation, end_rotation


@pytest.fixture
def path(tmp_path):
    return tmp_path / "secrets" / "pepper"


def test_a_rotation_keeps_old_hashes_valid_until_it_ends(path):
    key = generate_key()
    before = KeyHasher.open(path)
    assert begin_rotation(path) == 2
    during = before.reopened()
    assert during.matches(key, before.digest(key), 1)
    assert during.digest(key) != before.digest(key)
    assert end_rotation(path, remaining=0) == 2
    after = during.reopened()
    assert after.matches(key, during.digest(key), 2)
    assert not after.matches(key, before.digest(key), 1)


def test_beginning_twice_makes_one_new_pepper(path):
    assert begin_rotation(path) == begin_rotation(path) == 2
    made = path.with_name("pepper.2").read_bytes()
    assert begin_rotation(path) == 2
    assert path.with_name("pepper.2").read_bytes() == made
    assert len(set(path.parent.iterdir())) == 2


def test_the_old_pepper_stays_while_a_living_key_needs_it(path):
    begin_rotation(path)
    with pytest.raises(StillNeeded, match="3 keys"):
        end_rotation(path, remaining=3)
    assert KeyHasher.open(path).knows(1)


def test_ending_twice_or_without_a_beginning_deletes_nothing_more(path):
    assert end_rotation(path, remaining=5) == 1
    begin_rotation(path)
    end_rotation(path, remaining=0)
    assert end_rotation(path, remaining=0) == 2
    assert KeyHasher.open(path).generation == 2
    assert not path.exists()


def test_after_a_rotation_no_first_pepper_is_made_again(path):
    for generation in (2, 3):
        assert begin_rotation(path) == generation
        end_rotation(path, remaining=0)
    assert KeyHasher.open(path).generation == 3
    assert [p.name for p in path.parent.iterdir()] == ["pepper.3"]


def test_a_new_pepper_is_private_and_random(path):
    begin_rotation(path)
    new = path.with_name("pepper.2")
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    assert len(new.read_bytes()) == 32
    assert new.read_bytes() != path.read_bytes()


def test_three_generations_at_once_are_refused(path):
    begin_rotation(path)
    path.with_name("pepper.3").write_bytes(bytes(32))
    with pytest.raises(ValueError, match="more than two"):
        KeyHasher.open(path)
