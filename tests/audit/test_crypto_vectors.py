"""Public vectors of the cryptography that the record rests on, negative ones included."""

import hmac
import json
from collections.abc import Iterator
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from audit.events.commitment import SALT_SIZE, commit_canonical
from audit.pack_verifier.ed25519 import ed25519
from tests.audit.conftest import VECTORS

UNSOUND = frozenset({"low_order_residue", "non_canonical_A", "non_canonical_R"})


def wycheproof(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for group in json.loads((VECTORS / "wycheproof" / name).read_text())["testGroups"]:
        for test in group["tests"]:
            yield group, test


def unhex(test: dict[str, Any], *names: str) -> list[bytes]:
    return [bytes.fromhex(test[name]) for name in names]


def test_verify_py_takes_ed25519_signatures_only_if_they_are_sound_by_the_strictest_reading() -> None:
    """CCTV: where implementations differ, ours is RFC 8032 without cofactor, and canonical encodings alone."""
    vectors = json.loads((VECTORS / "ed25519" / "ed25519vectors.cctv.json").read_text())
    taken = [v for v in vectors if ed25519(bytes.fromhex(v["key"]), v["msg"].encode(), bytes.fromhex(v["sig"]))]
    assert [v["number"] for v in taken] == [v["number"] for v in vectors if not UNSOUND & set(v["flags"] or ())]
    assert 0 < len(taken) < len(vectors)


def test_aes_gcm_opens_what_is_whole_and_nothing_else() -> None:
    judged = 0
    for group, test in wycheproof("aes_gcm_test.json"):
        if group["ivSize"] != 96 or group["tagSize"] != 128:
            continue  # private values have nonces of 12 bytes and whole tags
        key, iv, aad, msg, ct, tag = unhex(test, "key", "iv", "aad", "msg", "ct", "tag")
        judged += 1
        try:
            opened: bytes | None = AESGCM(key).decrypt(iv, ct + tag, aad)
        except InvalidTag:
            opened = None
        assert opened == (None if test["result"] == "invalid" else msg), test["tcId"]
        if test["result"] == "valid":
            assert AESGCM(key).encrypt(iv, msg, aad) == ct + tag
    assert judged > 50


def test_keys_are_wrapped_and_unwrapped_as_rfc_3394_says() -> None:
    judged = 0
    for _, test in wycheproof("aes_wrap_test.json"):
        key, msg, ct = unhex(test, "key", "msg", "ct")
        judged += 1
        try:
            opened: bytes | None = aes_key_unwrap(key, ct)
        except (InvalidUnwrap, ValueError):
            opened = None
        if test["result"] == "valid":
            assert opened == msg and aes_key_wrap(key, msg) == ct, test["tcId"]
        elif test["result"] == "invalid":
            assert opened is None, test["tcId"]
    assert judged > 50


def test_hmac_sha256_is_that_of_the_vectors_and_commitments_are_made_of_it() -> None:
    judged = 0
    for group, test in wycheproof("hmac_sha256_test.json"):
        key, msg, tag = unhex(test, "key", "msg", "tag")
        judged += 1
        same = hmac.compare_digest(hmac.digest(key, msg, "sha256")[: group["tagSize"] // 8], tag)
        assert same == (test["result"] == "valid"), test["tcId"]
    assert judged > 50
    salt = bytes(range(SALT_SIZE))
    text = b'v1|acme|id|input|"x"'
    assert commit_canonical(salt, "acme", "id", "input", b'"x"') == hmac.digest(salt, text, "sha256").hex()
