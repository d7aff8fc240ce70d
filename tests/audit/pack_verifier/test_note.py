"""The verifier's own reading of signed notes, keys and checkpoints, by public vectors and by what is no note."""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from audit.pack_verifier.fault import Broken
from audit.pack_verifier.note import open_note, parse_checkpoint, parse_key, parse_witness
from audit.tree.cosignature import WitnessKey
from audit.tree.note import VerifierKey, sign_note
from tests.audit.conftest import VECTORS, Home

EXAMPLES = json.loads((VECTORS / "signed-note/examples.json").read_text(encoding="utf-8"))
NOTES = [example for example in EXAMPLES if "note" in example]
KEYS = [example for example in EXAMPLES if "vkey_valid" in example]
ROOT = b64encode(bytes(32)).decode()


@pytest.mark.parametrize("example", NOTES, ids=lambda e: e["vkey"][:12])
def test_public_notes_open_with_their_keys_and_say_their_text(example: dict[str, Any]) -> None:
    text = open_note(example["note"], *parse_key(example["vkey"]))
    assert example["note"].startswith(text + "\n\u2014 ")


@pytest.mark.parametrize("example", KEYS, ids=lambda e: e.get("why", "good"))
def test_public_verifier_keys_are_judged_as_their_authors_say(example: dict[str, Any]) -> None:
    if example["vkey_valid"]:
        assert parse_key(example["vkey"])[0] == example["vkey"].partition("+")[0]
    else:
        with pytest.raises(Broken):
            parse_key(example["vkey"])


SPOILS: list[tuple[Callable[[str], str], str]] = [
    (lambda note: note.replace("one", "two", 1), "the signature of example.com/log is wrong"),
    (lambda note: note[:-1], "no signatures"),
    (lambda note: note.replace("\n\n", "\n"), "no signatures"),
    (lambda note: note.replace("\u2014", "-"), "malformed"),
    (lambda note: note + "\u2014 junk AAA=AAAA\n", "malformed"),
    (lambda note: note + "trailing\n", "malformed"),
    (lambda note: note.replace("example.com/log", "example.com/other"), "did not sign it"),
    (lambda note: note.replace("\u2014 example.com/log ", "\u2014 example.com/log AAAA"), "did not sign it"),
]


@pytest.mark.parametrize(("spoil", "told"), SPOILS)
def test_a_note_that_was_changed_does_not_open(home: Home, spoil: Callable[[str], str], told: str) -> None:
    note = sign_note("one\n", "example.com/log", home.signer)
    assert open_note(note, "example.com/log", home.signer.public_key) == "one\n"
    with pytest.raises(Broken, match=told):
        open_note(spoil(note), "example.com/log", home.signer.public_key)


@pytest.mark.parametrize("text", ["", "name", "name+00000000+", "name+00000000+AQ==", "name+1234+!!!"])
def test_what_is_no_verifier_key_is_refused(text: str) -> None:
    with pytest.raises(Broken):
        parse_key(text)


def test_a_key_under_another_name_than_its_id_was_made_for_is_refused(home: Home) -> None:
    key = str(VerifierKey("example.com/log", home.signer.public_key))
    assert parse_key(key) == ("example.com/log", home.signer.public_key)
    with pytest.raises(Broken, match="key id"):
        parse_key(key.replace("/log", "/other"))


def test_the_key_of_a_witness_is_read_and_that_of_a_log_is_not_taken_for_one(home: Home) -> None:
    witness = WitnessKey("second.example/witness", home.signer.public_key)
    name, public, _ = parse_witness(str(witness))
    assert (name, public) == ("second.example/witness", home.signer.public_key)
    for other in (str(home.key), "name", "name+0+!!"):
        with pytest.raises(ValueError):
            parse_witness(other)


def test_a_checkpoint_is_origin_size_and_root() -> None:
    assert parse_checkpoint(f"example.com/log/acme\n12\n{ROOT}\n") == ("example.com/log/acme", 12, bytes(32))


@pytest.mark.parametrize(
    "text",
    ["", "o\n12\n", f"o\n012\n{ROOT}\n", f"o\n-1\n{ROOT}\n", f"o\n{'9' * 20}\n{ROOT}\n", "o\n1\nAAAA\n", "o\n1\n!\n"],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(Broken):
        parse_checkpoint(text)
