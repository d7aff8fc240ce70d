import json
from typing import Any

import pytest

from audit.errors import NoteError
from audit.tree.note import MAX_SIGNATURES, VerifierKey, open_note, sign_note
from tests.audit.conftest import VECTORS, Home

EXAMPLES = json.loads((VECTORS / "signed-note/examples.json").read_text(encoding="utf-8"))
NOTES = [example for example in EXAMPLES if "note" in example]
KEYS = [example for example in EXAMPLES if "vkey_valid" in example]


@pytest.mark.parametrize("example", NOTES, ids=lambda e: e["vkey"][:12])
def test_public_notes_open_with_their_keys_and_say_their_text(example: dict[str, Any]) -> None:
    assert example["valid"]
    text = open_note(example["note"], [VerifierKey.parse(example["vkey"])])
    assert example["note"].startswith(text + "\n\u2014 ")


@pytest.mark.parametrize("example", KEYS, ids=lambda e: e.get("why", "good"))
def test_public_verifier_keys_are_judged_as_their_authors_say(example: dict[str, Any]) -> None:
    if example["vkey_valid"]:
        assert str(VerifierKey.parse(example["vkey"])) == example["vkey"]
    else:
        with pytest.raises(NoteError):
            VerifierKey.parse(example["vkey"])


def test_a_note_that_we_sign_opens_with_our_key_alone(home: Home) -> None:
    note = sign_note("one\n\ntwo\n", "example.com/log", home.signer)
    ours = VerifierKey("example.com/log", home.signer.public_key)
    assert open_note(note, [ours]) == "one\n\ntwo\n"
    for other in (VerifierKey("example.com/other", ours.public_key), VerifierKey("example.com/log", bytes(32))):
        with pytest.raises(NoteError, match="no known key"):
            open_note(note, [other])


def test_signatures_of_unknown_keys_are_passed_over(home: Home) -> None:
    note = sign_note("one\n", "example.com/log", home.signer)
    ours = VerifierKey("example.com/log", home.signer.public_key)
    assert open_note(note + "\u2014 witness.example AAAAAAAAAAA=\n", [ours]) == "one\n"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda note: note.replace("one", "two", 1),
        lambda note: note[:-1],
        lambda note: note.replace("\n\n", "\n"),
        lambda note: note.replace("\u2014", "-"),
        lambda note: note.replace("\u2014 example.com/log ", "\u2014 example.com/log  "),
        lambda note: note + "\n",
        lambda note: note.replace("one", "o\tne", 1),
        lambda note: note + "\u2014 no-signature\n",
        lambda note: note + "\u2014 short AAAA\n",
        lambda note: note + "\u2014 junk !!!!AAAAAAAA\n",
        lambda note: note + "trailing\n",
        lambda note: note + "\u2014 many AAAAAAAA\n" * MAX_SIGNATURES,
        lambda note: "x" * 1_000_001 + note,
        lambda note: "",
    ],
)
def test_a_spoiled_note_is_refused(home: Home, spoil: Any) -> None:
    note = sign_note("one\n", "example.com/log", home.signer)
    with pytest.raises(NoteError):
        open_note(spoil(note), [VerifierKey("example.com/log", home.signer.public_key)])


@pytest.mark.parametrize("text", ["no newline", "tab\there\n", "lone \ud800\n"])
def test_text_that_no_note_may_hold_is_not_signed(home: Home, text: str) -> None:
    with pytest.raises(NoteError):
        sign_note(text, "example.com/log", home.signer)


@pytest.mark.parametrize("name", ["", "with space", "with+plus", "nbsp\u00a0", "line\n"])
def test_a_key_goes_by_no_name_that_a_signature_line_could_not_carry(name: str) -> None:
    with pytest.raises(NoteError):
        VerifierKey(name, bytes(32))


@pytest.mark.parametrize("text", ["", "name", "name+00000000", "name+00000000+AAAA", "name+zz+AQ==", "n+1+2+3"])
def test_text_that_is_no_verifier_key_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        VerifierKey.parse(text)
