import pytest

from policy.redact.secrets import find_secrets


@pytest.mark.parametrize(
    ("text", "secret"),
    [("password: hunter2Xyz9", "hunter2Xyz9"), ('"api_key": "a8f5f167f44f4964"', "a8f5f167f44f4964"),
     ("Das Kennwort ist Tr0ub4dor3x.", "Tr0ub4dor3x"), ("mot de passe : Xk29vLm4pQ", "Xk29vLm4pQ"),
     ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
     ("Authorization: Bearer a8f5f167f44f4964e6", "a8f5f167f44f4964e6"),
     ("postgres://app:s3cret9x@db.example.org/x", "app:s3cret9x")],
)  # fmt: skip
def test_a_secret_is_found_where_its_name_or_place_shows_it(text, secret):
    assert secret in [text[start:end] for start, end in find_secrets(text, 0)]


@pytest.mark.parametrize(
    "text",
    ["password: correcthorse", "the token is counted", "key: 12345678", "secret = aaaaaaaa1", "a8f5f167f44f4964",
     "https://example.org:8080/x@y"],
)  # fmt: skip
def test_words_and_plain_numbers_beside_such_names_are_left_alone(text):
    assert list(find_secrets(text, 0)) == []
