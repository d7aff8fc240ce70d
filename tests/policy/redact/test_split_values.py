"""A value that is cut over parts or messages is found as one that is not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.errors import RedactionBlocked
from policy.redact.actions.plan import INPUT_LABELS, LABELS, RedactionPlan
from policy.redact.redactor import Redactor
from tests.policy.redact.layouts import LAYOUTS

NONCE = "k7f3ab"
VALUES = {
    "IBAN": "DE89 3704 0044 0532 0130 00",
    "EMAIL": "alice.smith@mail.example.org",
    "CARD": "4111 1111 1111 1111",
    "NATIONALID": "RSSMRA85T10A562S",
}
PSEUDONYMISE = Redactor(RedactionPlan({label: "pseudonymise" for label in LABELS}, {}))


def parts(*texts):
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]}


def messages(*texts):
    made = []
    for text in texts:
        made += [{"role": "user", "content": text}, {"role": "assistant", "content": "Go on."}]
    return {"messages": made[:-1]}


def texts_of(body):
    contents = [message["content"] for message in body["messages"] if message["role"] == "user"]
    return [part["text"] for part in contents[0]] if isinstance(contents[0], list) else contents


@pytest.mark.parametrize("shape", [parts, messages])
@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(VALUES)), st.data())
def test_a_value_cut_anywhere_never_leaves_in_pieces(shape, name, data):
    value = VALUES[name]
    # Of an address, one side must not be an address alone: what is left of it then is a piece of a name or a domain.
    first_cut, last_cut = (value.index("@"), value.index(".example") + 2) if "@" in value else (4, len(value) - 5)
    at = data.draw(st.integers(first_cut, last_cut))
    first, second = value[:at], value[at:]
    result = PSEUDONYMISE.redact_body(shape(f"It is {first}", f"{second} , thanks"), LAYOUTS["chat"], NONCE)
    sent = texts_of(result.body)
    assert sent == [f"It is <{name}_1_{NONCE}>", " , thanks"]
    assert PSEUDONYMISE.restore_text("".join(sent), result.pseudonyms) == f"It is {value} , thanks"


@pytest.mark.parametrize("shape", [parts, messages])
def test_a_value_cut_at_its_blanks_into_several_is_found(shape):
    result = PSEUDONYMISE.redact_body(
        shape("It is DE89 3704", "0044 0532", "0130 00.", "Right?"), LAYOUTS["chat"], NONCE
    )
    assert texts_of(result.body) == [f"It is <IBAN_1_{NONCE}>", "", ".", "Right?"]


def test_a_cut_value_is_blocked_where_a_whole_one_is():
    with pytest.raises(RedactionBlocked):
        Redactor(RedactionPlan({"iban": "block"}, {})).redact_body(
            parts("DE89 3704 0044", "0532 0130 00"), LAYOUTS["chat"], NONCE
        )


@pytest.mark.parametrize("shape", [parts, messages])
@pytest.mark.parametrize("texts", [
    ("Write to bob", "alice@example.org"), ("alice@example.org", "bob@example.org"), ("In 2024", "12 people came"),
    ("4111 1111 1111 1111", "4012 8888 8888 1881"), ("It costs 12", "345 euros"), ("See a", "b@"),
])  # fmt: skip
def test_texts_that_no_value_joins_are_searched_each_by_itself(shape, texts):
    sent = texts_of(PSEUDONYMISE.redact_body(shape(*texts), LAYOUTS["chat"], NONCE).body)
    alone = [PSEUDONYMISE.redact_body({"prompt": text}, LAYOUTS["completions"], NONCE) for text in texts]
    assert [text.count("<") for text in sent] == [each.body["prompt"].count("<") for each in alone]
    assert len(sent) == len(texts) and all("@" not in text or text == "b@" for text in sent)


def test_a_clean_body_of_parts_comes_back_as_the_same_object():
    body = parts("What is", "the capital of France in 2024", "12?")
    assert PSEUDONYMISE.redact_body(body, LAYOUTS["chat"], NONCE).body is body


def test_names_are_looked_for_in_the_texts_as_they_are_searched():
    redactor = Redactor(RedactionPlan({label: "mask" for label in INPUT_LABELS}, {}))
    body = parts("It is DE89 3704 0044", "0532 0130 00 of Anna")
    names = {text: [] for text in redactor.texts(body, LAYOUTS["chat"])}
    assert texts_of(redactor.redact_body(body, LAYOUTS["chat"], NONCE, names).body) == ["It is [IBAN]", " of Anna"]


@pytest.mark.parametrize("shape", [parts, messages])
@pytest.mark.parametrize("at", [2, 4, 12, 28])
def test_a_vendors_key_cut_in_two_is_one_secret(shape, at):
    key = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
    body = shape(f"my key is {key[:at]}", f"{key[at:]} and no more")
    redacted = PSEUDONYMISE.redact_body(body, LAYOUTS["chat"], NONCE)
    assert "".join(texts_of(redacted.body)) == f"my key is <SECRET_1_{NONCE}> and no more"


@pytest.mark.parametrize("shape", [parts, messages])
def test_words_that_only_begin_as_a_key_does_are_not_joined(shape):
    body = shape("see ghp_", "actions and more")
    assert PSEUDONYMISE.redact_body(body, LAYOUTS["chat"], NONCE).body is body
