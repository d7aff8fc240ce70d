import hashlib
import hmac

import pytest

from audit.errors import CanonicalError, CommitmentError
from audit.events.commitment import commit, new_salt, verify_commitment

SALT = bytes(range(32))
EVENT = "01932b5e-0000-7000-8000-000000000000"


def test_a_commitment_is_the_hmac_of_what_the_format_says() -> None:
    message = f'v1|acme|{EVENT}|input|{{"a":1,"é":"x"}}'.encode()
    expected = hmac.new(SALT, message, hashlib.sha256).hexdigest()
    assert commit(SALT, "acme", EVENT, "input", {"é": "x", "a": 1}) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"salt": bytes(32)},
        {"tenant": "globex"},
        {"event_id": EVENT.replace("0000-7", "0001-7")},
        {"field": "output"},
        {"value": "Alice "},
        {"value": ["Alice"]},
    ],
    ids=str,
)
def test_a_commitment_holds_for_one_value_in_one_place_under_one_salt(changed: dict[str, object]) -> None:
    said: dict[str, object] = {"salt": SALT, "tenant": "acme", "event_id": EVENT, "field": "input", "value": "Alice"}
    made = commit(**said)  # type: ignore[arg-type]
    verify_commitment(made, **said)  # type: ignore[arg-type]
    with pytest.raises(CommitmentError):
        verify_commitment(made, **(said | changed))  # type: ignore[arg-type]


def test_two_salts_are_never_the_same() -> None:
    assert len({new_salt() for _ in range(100)}) == 100


@pytest.mark.parametrize("salt", [b"", bytes(31), bytes(33)], ids=len)
def test_a_salt_of_another_length_is_refused(salt: bytes) -> None:
    with pytest.raises(CommitmentError):
        commit(salt, "acme", EVENT, "input", "x")


def test_a_value_without_a_canonical_form_cannot_be_committed_to() -> None:
    with pytest.raises(CanonicalError):
        commit(SALT, "acme", EVENT, "input", float("nan"))
