import re
import stat

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from audit.files.secret_file import LoosePermissions, write_secret
from gateway.identity.keys import (
    KEY_PATTERN,
    ApiKey,
    KeyHasher,
    KeyMalformed,
    KeyMissing,
    generate_key,
    parse_key,
)

PEPPER = bytes(range(32))
KNOWN = "dom_live_00000001_0000000000000000000000000000000000000000002"


def test_a_new_key_reads_back_and_fits_the_published_pattern():
    key = generate_key()
    assert parse_key(key.token) == key
    assert re.fullmatch(KEY_PATTERN, key.token)
    assert len(key.token) == 67


def test_keys_differ_in_id_and_secret():
    keys = [generate_key() for _ in range(100)]
    assert len({k.id for k in keys}) == 100
    assert len({k.token[18:61] for k in keys}) == 100


def test_the_format_is_pinned_by_a_vector():
    numbers = iter([1, 2])
    key = generate_key(lambda _limit: next(numbers))
    assert key.token == KNOWN + "30MxzC"
    assert parse_key(key.token).id == "00000001"


@given(st.integers(0, 66), st.sampled_from("0aZ_-.\u0430 "))
def test_one_wrong_character_anywhere_is_refused(at, character):
    token = generate_key().token
    assume(token[at] != character)
    with pytest.raises(KeyMalformed):
        parse_key(token[:at] + character + token[at + 1 :])


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:-1],
        lambda t: t + "0",
        lambda t: t + "\n",
        lambda t: " " + t,
        lambda t: t.replace("dom_live", "DOM_LIVE"),
        lambda t: t.replace("dom_", "sk_"),
        lambda t: t + "' OR 1=1 --",
        lambda t: t[:40] + "\r\nx-admin: 1",
        lambda t: t * 1000,
        lambda t: "\ud800" * len(t),
        lambda t: t.translate({ord("d"): "\uff44"}),
    ],
)
def test_what_is_not_a_key_is_refused_without_repeating_it(change):
    token = generate_key().token
    with pytest.raises(KeyMalformed) as refusal:
        parse_key(change(token))
    assert token[18:30] not in str(refusal.value)


def test_no_key_is_told_apart_from_a_wrong_one():
    with pytest.raises(KeyMissing):
        parse_key("")


def test_a_key_does_not_show_when_printed():
    key = generate_key()
    assert key.token not in repr(key)
    assert key.token[20:40] not in f"{key}"


def test_only_the_same_key_under_the_same_pepper_matches():
    key, hasher = generate_key(), KeyHasher(PEPPER)
    digest = hasher.digest(key)
    assert hasher.matches(key, digest)
    assert not hasher.matches(generate_key(), digest)
    assert not KeyHasher(PEPPER[::-1]).matches(key, digest)
    assert not hasher.matches(ApiKey(key.id, generate_key().token), digest)


def test_the_pepper_is_made_once_and_kept_private(tmp_path):
    path = tmp_path / "pepper"
    key = generate_key()
    assert KeyHasher.open(path).digest(key) == KeyHasher.open(path).digest(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pepper_others_may_read_or_that_is_too_short_is_refused(tmp_path):
    path = tmp_path / "pepper"
    KeyHasher.open(path)
    path.chmod(0o644)
    with pytest.raises(LoosePermissions):
        KeyHasher.open(path)
    write_secret(path, b"short")
    with pytest.raises(ValueError, match="32 bytes"):
        KeyHasher.open(path)


def test_a_token_of_a_person_is_no_key_of_a_project_and_the_other_way_round():
    with pytest.raises(KeyMalformed, match="dom_live_"):
        parse_key(generate_key(kind="admin").token)
    with pytest.raises(KeyMalformed, match="dom_admin_"):
        parse_key(generate_key().token, "admin")
    token = generate_key(kind="admin")
    assert parse_key(token.token, "admin") == token


def test_both_generations_match_what_they_made_and_new_hashes_are_of_the_newer():
    key = generate_key()
    old = KeyHasher(PEPPER)
    both = KeyHasher(PEPPER[::-1], 2, previous=PEPPER)
    assert both.matches(key, old.digest(key), 1)
    assert not both.matches(key, old.digest(key), 2)
    assert both.matches(key, both.digest(key), 2)
    assert both.digest(key) == KeyHasher(PEPPER[::-1], 2).digest(key)


@pytest.mark.parametrize("generation", [0, 1, 3])
def test_a_hash_of_a_generation_that_is_not_known_matches_nothing(generation):
    key, hasher = generate_key(), KeyHasher(PEPPER, 2)
    assert not hasher.matches(key, hasher.digest(key), generation)
