"""Disguises that mail, pages and phones give to an address or a number."""

import base64

import pytest

from policy.redact.actions.plan import LABELS, OUTPUT_LABELS, RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.redactor import Redactor
from tests.policy.redact.layouts import LAYOUTS

NONCE = "k7f3ab"
MASK = Redactor(RedactionPlan({label: "mask" for label in LABELS}, {label: "mask" for label in OUTPUT_LABELS}))
PSEUDONYMISE = Redactor(RedactionPlan({label: "pseudonymise" for label in LABELS}, {}))
LETTER = "Sehr geehrte Damen und Herren,\nbitte schreiben Sie an alice@example.org.\nMit besten Grüßen\n" * 3
BODY = base64.encodebytes(LETTER.encode()).decode()


def sent(text, redactor=MASK):
    return redactor.redact_body({"prompt": text}, LAYOUTS["completions"], NONCE).body["prompt"]


@pytest.mark.parametrize("text", [
    "alice (at) example.org", "alice(at)example.org", "alice [AT] example [dot] org", "alice{at}example(dot)co(dot)uk",
    "a.b+c (ät) example (punkt) de", "alice=40example.org", "al\U000e0040ice@exa\U000e0041mple.org",
    base64.b64encode(b"alice@example.org").decode(),
    base64.urlsafe_b64encode("Grüße: alice@example.org?>".encode()).decode(),
])  # fmt: skip
def test_a_disguised_address_never_leaves_and_comes_back_as_written(text):
    assert sent(f"Write to {text}, please") == "Write to [EMAIL], please"
    result = PSEUDONYMISE.redact_body({"prompt": text}, LAYOUTS["completions"], NONCE)
    assert PSEUDONYMISE.restore_text(result.body["prompt"], result.pseudonyms) == text


@pytest.mark.parametrize("text", [
    "meet me (at) noon. Then", "f(at)x", "see [at] the end", "price=40euro", "x=40.5", "be {a} example.org",
    base64.b64encode(b"nothing that is personal here").decode(), base64.b64encode(bytes(range(64))).decode(),
    "da39a3ee5e6b4b0d3255bfef95601890afd80709", "internationalisation/configuration",
])  # fmt: skip
def test_what_only_looks_disguised_is_left_alone(text):
    assert sent(f"Write {text}, please") == f"Write {text}, please"


def test_digits_in_keycaps_are_digits():
    keycaps = "".join(f"{digit}\ufe0f\u20e3" for digit in "01712345678")
    assert not set("0123456789") & set(sent(f"Handynummer: {keycaps} ja"))


def test_a_body_in_base64_is_one_finding_and_comes_back_whole():
    text = f"Content-Transfer-Encoding: base64\n\n{BODY}--end"
    assert sent(text) == "Content-Transfer-Encoding: base64\n\n[EMAIL]\n--end"
    result = PSEUDONYMISE.redact_body({"prompt": text}, LAYOUTS["completions"], NONCE)
    assert PSEUDONYMISE.restore_text(result.body["prompt"], result.pseudonyms) == text


def test_two_encodings_that_differ_in_the_case_of_a_letter_are_two_values():
    text = " ".join(base64.b64encode(f"{name}@example.org".encode()).decode() for name in ("alice", "Alice"))
    result = PSEUDONYMISE.redact_body({"prompt": text}, LAYOUTS["completions"], NONCE)
    assert len(result.pseudonyms) == 2 and PSEUDONYMISE.restore_text(result.body["prompt"], result.pseudonyms) == text


def test_the_strictest_action_of_what_stands_in_an_encoding_counts():
    redactor = Redactor(RedactionPlan({"email": "pseudonymise", "iban": "mask"}, {}))
    text = base64.b64encode(b"alice@example.org DE89 3704 0044 0532 0130 00").decode()
    assert sent(text, redactor) == "[IBAN]"


def test_an_address_spelt_without_blanks_is_found_in_any_pieces_of_an_answer():
    text = "an alice(at)example.org schreiben"
    for size in range(1, len(text)):
        stream = MASK.stream_filter(Pseudonyms(NONCE))
        out = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.flush()
        assert out == "an [EMAIL] schreiben"
