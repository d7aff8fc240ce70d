import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from audit.errors import SignerError
from audit.note import VerifierKey, open_note, sign_note
from audit.signer import FileSigner


def test_a_key_is_made_once_for_its_owner_alone_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "signer.key"
    made = FileSigner.open(path, name="example.com/audit")
    again = FileSigner.open(path, name="ignored.example")
    assert again.verifier_key == made.verifier_key
    assert again.name == "example.com/audit"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert VerifierKey.parse(path.with_suffix(".vkey").read_text()) == made.verifier_key
    assert open_note(sign_note("x\n", "n", again), [VerifierKey("n", made.public_key)]) == "x\n"
    assert sorted(file.name for file in path.parent.iterdir()) == ["signer.key", "signer.vkey"]


def test_processes_that_start_at_once_end_up_with_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: FileSigner.open(tmp_path / "signer.key").public_key, range(8)))
    assert len(keys) == 1


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    FileSigner.open(path)
    path.chmod(0o640)
    with pytest.raises(SignerError, match="chmod 600"):
        FileSigner.open(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: "\u00e9",
        lambda text: text.replace("PRIVATE", "PUBLIC"),
        lambda text: text[:-8] + "\n",
        lambda text: text.replace("domicile.local", "elsewhere.example"),
        lambda text: text.rpartition("+")[0] + "+" + "A" * 44 + "\n",
    ],
)
def test_a_damaged_key_is_refused_and_never_replaced(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "signer.key"
    FileSigner.open(path)
    spoiled = spoil(path.read_text())
    path.write_text(spoiled)
    with pytest.raises(SignerError):
        FileSigner.open(path)
    assert path.read_text() == spoiled


def test_the_error_about_a_key_does_not_show_it(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    FileSigner.open(path)
    secret = path.read_text().strip().split("+", 4)[4]  # base64, which may hold a plus itself
    path.write_text(path.read_text().replace("+" + secret[:4], "+AAAA"))
    with pytest.raises(SignerError) as caught:
        FileSigner.open(path)
    assert secret[6:] not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SignerError):
        FileSigner.open(tmp_path / "file" / "signer.key")
