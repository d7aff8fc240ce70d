import json

import pytest

from audit.errors import NoteError
from audit.tree.merkle import leaf_hash, tree_hash
from audit.tree.note import VerifierKey, sign_note
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint, origin_of, sign_checkpoint
from tests.audit.conftest import VECTORS, Home

TILES = VECTORS / "tlog-tiles"
KEY = VerifierKey.parse((TILES / "log.pub").read_text())
ENTRIES = [leaf_hash(entry.encode()) for entry in json.loads((TILES / "entries.json").read_text())]
ROOT = "uZo6M+IhVna+CLgWCrJs0xBPUHbozHkYTQASduHSLME="


@pytest.mark.parametrize("size", range(16))
def test_each_checkpoint_of_a_public_log_is_signed_over_the_root_of_its_entries(size: int) -> None:
    note = (TILES / f"log/checkpoint.{size}").read_text()
    checkpoint = open_checkpoint(note, KEY.name, KEY.public_key)
    assert checkpoint == Checkpoint(KEY.name, size, tree_hash(ENTRIES[:size]))
    assert note.startswith(checkpoint.text() + "\n")


def test_what_we_sign_opens_as_what_we_meant(home: Home) -> None:
    checkpoint = Checkpoint(origin_of("example.com/audit", "acme"), 7, bytes(range(32)))
    note = sign_checkpoint(checkpoint, home.signer)
    assert open_checkpoint(note, "example.com/audit/acme", home.signer.public_key) == checkpoint


def test_a_checkpoint_of_one_tenant_does_not_pass_for_another(home: Home) -> None:
    note = sign_checkpoint(Checkpoint("example.com/audit/acme", 7, bytes(32)), home.signer)
    with pytest.raises(NoteError):
        open_checkpoint(note, "example.com/audit/globex", home.signer.public_key)
    lying = sign_note(
        Checkpoint("example.com/audit/acme", 7, bytes(32)).text(), "example.com/audit/globex", home.signer
    )
    with pytest.raises(NoteError, match=r"is of example\.com/audit/acme, not of example\.com/audit/globex"):
        open_checkpoint(lying, "example.com/audit/globex", home.signer.public_key)


def test_extension_lines_are_passed_over() -> None:
    assert Checkpoint.parse(f"log\n12\n{ROOT}\nextension\n").size == 12


@pytest.mark.parametrize(
    "text",
    [
        "",
        "log\n12\n",
        f"\n12\n{ROOT}\n",
        f"log\n12\n{ROOT}",
        f"log\n012\n{ROOT}\n",
        f"log\n-1\n{ROOT}\n",
        f"log\n+1\n{ROOT}\n",
        f"log\n1_0\n{ROOT}\n",
        f"log\n\u0661\n{ROOT}\n",
        f"log\n{'9' * 20}\n{ROOT}\n",
        f"log\n12\n{ROOT[:-4]}\n",
        f"log\n12\n{ROOT[:-1]}\n",
        "log\n12\n!!!!\n",
        f"log\n12\n{ROOT[:-2]}F=\n",
        f"log\n12\n{ROOT}\n\n",
    ],
    ids=repr,
)
def test_text_that_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        Checkpoint.parse(text)
