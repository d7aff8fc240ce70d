from pathlib import Path

import pytest

from audit.errors import NoteError
from audit.keys.signer import FileSigner
from audit.keys.succession import digest, open_succession, sign_succession, with_successors
from audit.tree.note import VerifierKey

NAME = "domicile.local/audit"
AT = "2026-11-28T03:00:00.000Z"


@pytest.fixture
def signers(tmp_path: Path) -> list[FileSigner]:
    return [FileSigner.open(tmp_path / f"{number}.key", name=NAME) for number in range(4)]


def test_a_succession_is_signed_by_both_keys(signers: list[FileSigner]) -> None:
    old, new, *_ = signers
    note = sign_succession(NAME, old, new, AT)
    assert open_succession(note, NAME) == (old.public_key, new.public_key)
    assert len(digest(note)) == 64


def test_a_key_follows_the_chain_forward_and_back(signers: list[FileSigner]) -> None:
    first, second, third, stranger = signers
    notes = [sign_succession(NAME, first, second, AT), sign_succession(NAME, second, third, AT)]
    for signer in (first, second, third):
        keys = with_successors(VerifierKey(NAME, signer.public_key), notes).public_keys
        assert set(keys) == {first.public_key, second.public_key, third.public_key}
        assert keys[0] == signer.public_key
    assert with_successors(VerifierKey(NAME, stranger.public_key), notes).kin == ()


def test_a_chain_that_is_broken_leads_no_further(signers: list[FileSigner]) -> None:
    first, second, third, fourth = signers
    notes = [sign_succession(NAME, first, second, AT), sign_succession(NAME, third, fourth, AT)]
    assert with_successors(VerifierKey(NAME, first.public_key), notes).kin == (second.public_key,)


@pytest.mark.parametrize("line", [1, 2])
def test_a_succession_that_one_key_alone_signed_is_refused(signers: list[FileSigner], line: int) -> None:
    old, new, *_ = signers
    text, _, signatures = sign_succession(NAME, old, new, AT).partition("\n\n")
    rows = signatures.splitlines(keepends=True)
    del rows[line - 1]
    with pytest.raises(NoteError, match="no known key signed"):
        open_succession(f"{text}\n\n{''.join(rows)}", NAME)


def test_what_is_no_succession_of_this_log_is_refused(signers: list[FileSigner]) -> None:
    old, new, *_ = signers
    note = sign_succession(NAME, old, new, AT)
    with pytest.raises(NoteError, match="no key succession of"):
        open_succession(note, "other.example/audit")
    with pytest.raises(NoteError):
        open_succession(note.replace("2026", "2025"), NAME)
    with pytest.raises(NoteError, match="from one key of the log to another"):
        open_succession(sign_succession(NAME, old, old, AT), NAME)
    with pytest.raises(NoteError):
        open_succession("nothing\n", NAME)
