import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.errors import RedactionError
from policy.redact.actions.pseudonyms import PLACEHOLDER, Pseudonyms, nonce_from


@given(st.binary(min_size=4, max_size=12))
def test_any_random_bytes_make_a_nonce(random_bytes):
    assert len(repr(Pseudonyms(nonce_from(random_bytes)))) < 20


@pytest.mark.parametrize("size", [0, 3, 13])
def test_too_few_or_too_many_bytes_make_none(size):
    with pytest.raises(RedactionError):
        nonce_from(bytes(size))


@pytest.mark.parametrize(
    "text", ["<b>", "a < b and", "<EMAIL>", "<1_EMAIL_k7f3>", "<EMAIL_1_k7f3", "<EMAIL_1234567890123_k7f3>"]
)
def test_what_is_no_placeholder_is_none(text):
    assert not PLACEHOLDER.fullmatch(text)


def test_spellings_of_a_value_share_a_number_and_each_comes_back_as_it_was_written():
    names = Pseudonyms("k7f3")
    assert names.placeholder("iban", "DE89 3704", "de893704") == "<IBAN_1_k7f3>"
    assert names.placeholder("iban", "de893704", "de893704") == "<IBAN_1_k7f32>"
    assert names.placeholder("iban", "DE89 3704", "de893704") == "<IBAN_1_k7f3>"
    assert [names.value(1, word) for word in ("k7f3", "k7f32", "k7f33", "zzzz")] == [
        "DE89 3704", "de893704", None, None,
    ]  # fmt: skip
    assert names.counts == {"IBAN": 1}


def test_a_number_stands_for_one_value_whatever_its_label():
    names = Pseudonyms("k7f3")
    assert names.placeholder("iban", "1") == "<IBAN_1_k7f3>"
    assert names.placeholder("email", "1") == "<EMAIL_2_k7f3>"
    assert names.counts == {"IBAN": 1, "EMAIL": 1}


def test_the_representation_shows_no_value():
    names = Pseudonyms("k7f3")
    names.placeholder("email", "alice@example.org")
    assert repr(names) == "Pseudonyms(1)"


def test_in_a_conversation_a_value_keeps_its_placeholder_whatever_stands_before_it():
    first, second = Pseudonyms("k7f3", b"key"), Pseudonyms("k7f3", b"key")
    placeholder = first.placeholder("email", "alice@example.org")
    second.placeholder("email", "bert@example.org")
    assert second.placeholder("email", "alice@example.org") == placeholder
    assert Pseudonyms("k7f3", b"other").placeholder("email", "alice@example.org") != placeholder


def test_in_a_conversation_neither_the_order_nor_what_is_left_out_changes_a_placeholder():
    written = [f"user{index:04}@example.org" for index in range(900)]
    spelt = [(each, each) for each in written] + [(each.upper(), each) for each in written[:300]]

    def made(order):
        pseudonyms = Pseudonyms("k7f3", b"key")
        return {each: pseudonyms.placeholder("email", each, canonical) for each, canonical in order}

    in_order = made(spelt)
    assert made(reversed(spelt)) == in_order
    assert made(spelt[450:]).items() <= in_order.items()


def test_two_values_of_a_conversation_never_share_a_placeholder():
    pseudonyms = Pseudonyms("k7f3", b"key")
    made = {pseudonyms.placeholder("email", f"a{index}@example.org") for index in range(2000)}
    assert len(made) == 2000
