from pathlib import Path

import pytest

from audit.errors import NoteError
from audit.keys.signer import FileSigner
from audit.tree.cosignature import WitnessKey, cosign, cosigned_at
from audit.tree.note import VerifierKey, open_note
from audit.tree.tlog_checkpoint import Checkpoint, sign_checkpoint

TEXT = Checkpoint("log/acme", 3, bytes(32)).text()
NOW = 1_700_000_000


@pytest.fixture
def signer(tmp_path: Path) -> FileSigner:
    return FileSigner.open(tmp_path / "witness.key", name="witness.example")


def test_a_cosignature_tells_its_time_and_leaves_the_logs_own_signature_alone(
    signer: FileSigner, tmp_path: Path
) -> None:
    log = FileSigner.open(tmp_path / "log.key", name="log")
    note = sign_checkpoint(Checkpoint("log/acme", 3, bytes(32)), log) + cosign(TEXT, signer.name, signer, NOW)
    assert open_note(note, [VerifierKey("log/acme", log.public_key)]) == TEXT
    key = WitnessKey(signer.name, signer.public_key)
    assert cosigned_at(note, key) == NOW
    assert WitnessKey.parse(str(key)) == key


@pytest.mark.parametrize("change", ["text", "name", "key", "time", "none"])
def test_a_cosignature_of_something_else_is_refused(signer: FileSigner, tmp_path: Path, change: str) -> None:
    line = cosign(TEXT, signer.name, signer, NOW)
    key = WitnessKey(signer.name, signer.public_key)
    text = TEXT
    if change == "text":
        text = TEXT.replace("\n3\n", "\n4\n")
    elif change == "name":
        key = WitnessKey("other.example", key.public_key)
    elif change == "key":
        key = WitnessKey(key.name, FileSigner.open(tmp_path / "other.key").public_key)
    elif change == "time":
        line = line[:-90] + ("B" if line[-90] != "B" else "C") + line[-89:]
    else:
        line = ""
    with pytest.raises(NoteError):
        cosigned_at(f"{text}\n{line}", key)


def test_a_key_of_the_log_is_no_key_of_a_witness(signer: FileSigner) -> None:
    for text in (str(signer.verifier_key), "a+b", str(WitnessKey("w", bytes(32))).replace("w+", "x+")):
        with pytest.raises(NoteError):
            WitnessKey.parse(text)
