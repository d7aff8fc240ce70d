import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from audit.errors import SignerError
from audit.keys.signer import FileSigner, FollowingSigner, LogSigner, key_of
from audit.log.audit_log import AuditLog
from audit.storage.sqlite import SqliteReader
from audit.tree.note import VerifierKey, open_note, sign_note
from audit.witness.rotation import in_file, rotate


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


class _MadeMeanwhile(type(Path())):  # type: ignore[misc]  # the class of this system's paths
    """A path whose key another process makes between the first look for it and the look for its verifier key."""

    def with_suffix(self, suffix: str) -> Path:
        FileSigner.open(Path(self))
        return Path(self).with_suffix(suffix)


def test_a_key_that_another_process_makes_between_two_looks_is_taken(tmp_path: Path) -> None:
    found = FileSigner.open(_MadeMeanwhile(tmp_path / "signer.key"))
    assert found.public_key == FileSigner.open(tmp_path / "signer.key").public_key


def test_a_verifier_key_alone_makes_no_new_key(tmp_path: Path) -> None:
    FileSigner.open(tmp_path / "signer.key")
    (tmp_path / "signer.key").unlink()
    with pytest.raises(SignerError, match="is not beside its verifier key"):
        FileSigner.open(tmp_path / "signer.key")
    assert not (tmp_path / "signer.key").exists()


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


# --- a signer that follows a rotation --------------------------------------------------------------------------------


async def rotated(path: Path) -> None:
    async def opened(signer: LogSigner) -> AuditLog:
        return await AuditLog.open(path.with_name("log.db"), signer=signer, node="cli-1")

    at = "2026-11-29T01:00:00Z"
    await rotate(
        path.parent,
        lambda: in_file(path),
        opened,
        lambda: SqliteReader.open(path.with_name("log.db")),
        at=at,
        actor="cli",
    )


async def test_a_running_signer_takes_the_new_key_up_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    signer = FollowingSigner.open(path, name="domicile.eu-1/audit")
    before = signer.public_key
    await rotated(path)
    assert signer.public_key == FileSigner.open(path).public_key != before
    assert before in key_of(signer).public_keys
    note = sign_note("text\n", signer.name, signer)
    assert open_note(note, [VerifierKey(signer.name, signer.public_key)]) == "text\n"


async def test_a_key_that_no_succession_links_does_not_sign(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    signer = FollowingSigner.open(path, name="domicile.eu-1/audit")
    FileSigner.open(tmp_path / "other" / "signer.key", name="domicile.eu-1/audit")
    (tmp_path / "other" / "signer.key").replace(path)
    path.with_suffix(".vkey").unlink()
    with pytest.raises(SignerError, match="no succession links to the one before; put the key"):
        sign_note("text\n", signer.name, signer)


async def test_a_verifier_key_of_another_generation_is_refused_or_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    FileSigner.open(path, name="domicile.eu-1/audit")
    old_key, old_vkey = path.read_bytes(), path.with_suffix(".vkey").read_bytes()
    await rotated(path)
    new_vkey = path.with_suffix(".vkey").read_bytes()
    path.with_suffix(".vkey").write_bytes(old_vkey)  # a rotation that was interrupted between the two files
    FileSigner.open(path)
    assert path.with_suffix(".vkey").read_bytes() == new_vkey
    path.write_bytes(old_key)  # an older key set put in place by hand
    with pytest.raises(SignerError, match="is an older one than this folder"):
        FileSigner.open(path)


def test_a_key_that_is_gone_from_beside_its_verifier_key_is_not_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    FileSigner.open(path)
    path.unlink()
    with pytest.raises(SignerError, match="put it back with the key set"):
        FileSigner.open(path)
    assert not path.exists()
