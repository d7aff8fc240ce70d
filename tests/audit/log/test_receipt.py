import sqlite3

import pytest

from audit.errors import AuditError, VerificationFailed
from audit.keys.signer import FileSigner
from audit.log.receipt import Receipt, verify_receipt
from audit.tree.note import VerifierKey
from tests.audit.conftest import Home, accepted, completed


@pytest.mark.parametrize(
    "text",
    ["", "acme", "acme/1", *(f"acme/{seq}/{'a' * 64}" for seq in ("01", "-1", "+1", "\u0661", "9" * 20))]
    + [f"{tenant}/1/{'a' * 64}" for tenant in ("ACME", "..", "", "a/b")]
    + [f"acme/1/{digest}" for digest in ("a" * 63, "a" * 65, "A" * 64, "g" * 64)],
)
def test_text_that_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(AuditError):
        Receipt.parse(text)


async def write(home: Home, calls: int) -> list[Receipt]:
    receipts = []
    async with await home.open() as log:
        for number in range(calls):
            receipts.append(await log.append(accepted(f"r{number}")))
            receipts.append(await log.append(completed(f"r{number}")))
    return receipts


async def test_every_receipt_of_a_closed_log_is_proven_by_a_logarithm_of_hashes(home: Home) -> None:
    receipts = await write(home, 11)
    reader = home.reader()
    for receipt in receipts:
        assert Receipt.parse(str(receipt)) == receipt
        found = verify_receipt(reader, home.key, receipt)
        assert found.leaf.seq == receipt.seq
        assert len(found.proof) <= 5
    reader.close()


async def test_a_receipt_for_another_record_another_place_or_another_tenant_is_refused(home: Home) -> None:
    first, second, *_ = await write(home, 3)
    reader = home.reader()
    for receipt, why in [
        (Receipt("acme", first.seq, second.leaf_hash), "not the one"),
        (Receipt("acme", 6, first.leaf_hash), "no record 6"),
        (Receipt("globex", 0, first.leaf_hash), "no record 0"),
    ]:
        with pytest.raises(VerificationFailed, match=why):
            verify_receipt(reader, home.key, receipt)
    reader.close()


async def test_a_receipt_is_refused_under_a_key_that_did_not_sign(home: Home, tmp_path: object) -> None:
    receipt, *_ = await write(home, 1)
    other = FileSigner.open(tmp_path / "other.key", name=home.key.name).verifier_key
    reader = home.reader()
    for key in (other, VerifierKey("elsewhere.example", home.key.public_key)):
        with pytest.raises(VerificationFailed, match="does not hold"):
            verify_receipt(reader, key, receipt)
    reader.close()


async def test_a_receipt_shows_a_log_that_changed_elsewhere(home: Home) -> None:
    receipt, *_ = await write(home, 4)
    with sqlite3.connect(home.path) as db:
        db.execute("UPDATE leaf SET hash = zeroblob(32) WHERE seq = 5")
    db.close()
    reader = home.reader()
    with pytest.raises(VerificationFailed, match="the log was changed"):
        verify_receipt(reader, home.key, receipt)
    reader.close()


async def test_a_record_without_a_checkpoint_is_said_to_be_unproven(home: Home) -> None:
    *_, last = await write(home, 2)
    with sqlite3.connect(home.path) as db:
        db.execute("DELETE FROM checkpoint")
    db.close()
    reader = home.reader()
    with pytest.raises(VerificationFailed, match="not yet under a signed checkpoint"):
        verify_receipt(reader, home.key, last)
    reader.close()
