"""A placeholder or a hash stands for one value, and the text that comes back is the text that was sent."""

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from policy.redact.actions.plan import INPUT_LABELS, KINDS, LABELS, RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.detectors.detectors import DETECTORS, Identities
from policy.redact.ids.kinds import IDS
from policy.redact.redactor import Redactor
from policy.redact.text.value_identity import EXACT, IDENTITIES, MAIL, NUMBER, SIGNED
from tests.policy.redact.layouts import LAYOUTS

NONCE = "k7f3ab"
KEY = b"tenant"
OWN = {"customer": r"[A-Z]{2}[-./ ]?[0-9]{1,3}[-./ ]?[0-9]{2,4}", "code": r"x[a-zA-Z.+_-]{3,8}"}
WORDS = {"project": ("Falke Nord", "Falke-Nord")}
OWN_LABELS = [f"custom.{name}" for name in (*OWN, *WORDS)]
PSEUDONYMISE = Redactor(
    RedactionPlan({label: "pseudonymise" for label in (*LABELS, *OWN_LABELS)}, {}, WORDS, OWN), hash_key=KEY
)
HASH = Redactor(RedactionPlan({label: "hash" for label in (*LABELS, *OWN_LABELS)}, {}, WORDS, OWN), hash_key=KEY)
ANSWER = Redactor(RedactionPlan({}, {"email": "hash", "ip": "hash", "iban": "hash"}), hash_key=KEY)
CANONICAL = Identities(DETECTORS).canonical
ALL_LABELS = (*INPUT_LABELS, *KINDS, *OWN_LABELS)
SEPARATORS_DO_NOT_COUNT = (
    "iban",
    "card",
    "vat",
    "imei",
    "mac",
    "phone",
    "national_id.pl_pesel",
    "national_id.passport",
)
FILES = ("national_id.medical_record", "national_id.professional_licence", "national_id.mrz")


def sent(redactor, text, **more):
    result = redactor.redact_body({"model": "m", "prompt": text}, LAYOUTS["completions"], NONCE, **more)
    return result.body["prompt"], result.pseudonyms


def placeholders(text):
    return re.findall(r"<[A-Z]+_[0-9]+_[a-z0-9]+>", text)


DIFFERENT = {
    "the place of a dot in an address": ("max.muster@x.de", "maxmuster@x.de"),
    "the place of a dot between letters": ("j.smith@x.de", "js.mith@x.de"),
    "a plus in an address": ("ab+c@x.de", "abc@x.de"),
    "a hyphen in a domain": ("a@my-shop.de", "a@myshop.de"),
    "the place of a dot in a number": ("84.12.1.34", "84.1.21.34"),
    "a colon in an IPv6 address": ("2a02:8109:1:23::4", "2a02:8109:12:3::4"),
    "day and month": ("Geburtsdatum: 1.11.1980", "Geburtsdatum: 11.1.1980"),
    "house number and postal code": ("Hauptstraße 1, 11111 Berlin", "Hauptstraße 11, 1111 Berlin"),
    "the case of a token": ("ghp_aBcD" + "e1F2" * 8, "ghp_AbCd" + "e1F2" * 8),
    "the case of a password": ("password: Hunter2-Xy", "password: hunter2-Xy"),
    "the separator of a password": ("password: hunter2-Xy", "password: hunter2_Xy"),
    "a superscript in a password": ("password: hunter2-Xy", "password: hunter²-Xy"),
    "the century of a Finnish code": ("131052-308T", "131052+308T"),
    "the district of a plate": ("Kennzeichen: B-MA 123", "Kennzeichen: BM-A 123"),
    "the file of a patient": ("NHC: 12-3456", "NHC: 123-456"),
    "a separator of a customer number": ("AB-12-345", "AB-123-45"),
    "the case of a code": ("xabC", "xabc"),
    "two words of a list": ("Falke Nord", "Falke-Nord"),
}  # fmt: skip
SAME = {
    "IBAN": ("DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "de89-3704-0044-0532-0130-00"),
    "card": ("4111 1111 1111 1111", "4111-1111-1111-1111", "4111111111111111"),
    "phone": ("+49 30 901820-12", "+49 (30) 90182012", "+49/30/901820-12"),
    "PESEL": ("PESEL: 44051401359", "PESEL: 440514 01359"),
    "VAT number": ("USt-IdNr. DE136695976", "USt-IdNr. DE 136 695 976"),
    "address": ("Max@Example.org", "max@example.org", "max@EXAMPLE.org", "max\u200b@example.org"),
}  # fmt: skip


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_two_values_share_neither_a_placeholder_nor_a_hash_and_come_back_each_as_itself(pair):
    for first, second in (pair, pair[::-1]):
        text = f"{first} ; und\n{second} ; fertig"
        redacted, pseudonyms = sent(PSEUDONYMISE, text)
        made = placeholders(redacted)
        assert len(made) == len(set(made)) == 2 == len(pseudonyms), redacted
        assert PSEUDONYMISE.restore_text(redacted, pseudonyms) == text
        hashes = re.findall(r"\[[A-Z_]+:[0-9a-f]{16}\]", sent(HASH, text)[0])
        assert len(hashes) == len(set(hashes)) == 2


@pytest.mark.parametrize("spellings", SAME.values(), ids=SAME)
@pytest.mark.parametrize("key", [None, b"conversation"])
def test_spellings_of_one_value_share_its_number_and_hash_and_come_back_as_they_were_sent(spellings, key):
    text = " ;\n".join((*spellings, *reversed(spellings)))
    redacted, pseudonyms = sent(PSEUDONYMISE, text, key=key)
    made = placeholders(redacted)
    assert len(made) == 2 * len(spellings) and len({each.split("_")[1] for each in made}) == 1 == len(pseudonyms)
    assert PSEUDONYMISE.restore_text(redacted, pseudonyms) == text
    hashes = re.findall(r"\[[A-Z_]+:[0-9a-f]{16}\]", sent(HASH, text)[0])
    assert len(hashes) == 2 * len(spellings) and len(set(hashes)) == 1


def test_in_an_answer_two_values_have_two_hashes_and_two_spellings_of_one_have_one():
    out = ANSWER.restore_text("j.smith@x.de js.mith@x.de J.Smith@x.de 84.12.1.34 84.1.21.34 ", Pseudonyms(NONCE))
    first, second, third, fourth, fifth = out.split()
    assert first == third and len({first, second, fourth, fifth}) == 4
    arguments = ANSWER.restore_text('{"a": "J.Smith\\u0040x.de"}', Pseudonyms(NONCE), json_escaped=True)
    assert arguments == f'{{"a": "{first}"}}'


def test_a_tool_call_gets_the_address_that_the_model_named():
    redacted, pseudonyms = sent(PSEUDONYMISE, "I am j.smith@x.de. Send it to js.mith@x.de")
    second = placeholders(redacted)[1]
    arguments = PSEUDONYMISE.restore_text(f'{{"to": "{second}"}}', pseudonyms, json_escaped=True)
    assert arguments == '{"to": "js.mith@x.de"}'


values = st.text("aAbB01.-_+@:/ ", min_size=2, max_size=12)


@st.composite
def near_pairs(draw):
    """Two texts that differ by one separator, one place of a sign, or the case of one letter."""
    value = draw(values)
    at = draw(st.integers(0, len(value) - 1))
    changed = draw(
        st.sampled_from([
            value[:at] + value[at + 1 :],
            value[:at] + "." + value[at:],
            value[:at] + value[at].swapcase() + value[at + 1 :],
            value[:at] + value[at + 1 : at + 2] + value[at] + value[at + 2 :],
        ])
    )  # fmt: skip
    assume(changed != value)
    return value, changed


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ALL_LABELS), near_pairs(), st.sampled_from([None, b"key"]))
@example("custom.code", ("a.b", "ab."), None)
def test_values_of_any_kind_that_differ_by_one_sign_are_one_only_where_their_kind_says_so(label, pair, key):
    first, second = (CANONICAL(label, value, value) for value in pair)
    pseudonyms = Pseudonyms(NONCE, key)
    made = [pseudonyms.placeholder(label, value, CANONICAL(label, value, value)) for value in pair]
    assert made[0] != made[1]
    numbers = [int(placeholder.split("_")[1]) for placeholder in made]
    assert (numbers[0] == numbers[1]) == (first == second)
    for value, placeholder in zip(pair, made, strict=True):
        assert PSEUDONYMISE.restore_text(f"a {placeholder} b", pseudonyms) == f"a {value} b"


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ALL_LABELS), near_pairs())
def test_what_may_differ_between_spellings_is_what_the_kind_declares(label, pair):
    same = CANONICAL(label, pair[0], pair[0]) == CANONICAL(label, pair[1], pair[1])
    bare = [re.sub(r"[^a-z0-9+]", "", value.lower()) for value in pair]
    spaced = ["".join(value.lower().split()) for value in pair]
    signed = label.startswith("national_id.") and "signed" in IDS[label.partition(".")[2]].traits
    if label == "email":
        assert same == (pair[0].lower() == pair[1].lower())
    elif label in FILES or label.startswith("card."):
        assert not same
    elif signed:
        assert same == (spaced[0] == spaced[1])
    elif label in SEPARATORS_DO_NOT_COUNT or label.startswith("national_id"):
        assert same == (bare[0] == bare[1])
    else:
        assert not same


@settings(max_examples=60, deadline=None)
@given(st.permutations([*dict.fromkeys(each for pair in DIFFERENT.values() for each in pair)][:12]), st.integers(0, 9))
def test_in_a_conversation_each_value_keeps_its_placeholder_whatever_the_order(order, left_out):
    text = " ; und\n".join(order)
    redacted, pseudonyms = sent(PSEUDONYMISE, text, key=b"conversation")
    assert PSEUDONYMISE.restore_text(redacted, pseudonyms) == text
    known = dict(zip(order, redacted.split(" ; und\n"), strict=True))
    fewer = order[::-1][left_out:]
    again = sent(PSEUDONYMISE, " ; und\n".join(fewer), key=b"conversation")[0].split(" ; und\n")
    assert dict(zip(fewer, again, strict=True)).items() <= known.items()


def test_composed_and_decomposed_letters_are_one_value_and_come_back_as_sent():
    pseudonyms = Pseudonyms(NONCE)
    made = [pseudonyms.placeholder("person", name, CANONICAL("person", name, name)) for name in ("Zoé", "Zoe\u0301")]
    assert made == [f"<PERSON_1_{NONCE}>", f"<PERSON_1_{NONCE}2>"]
    assert PSEUDONYMISE.restore_text(" ".join(made), pseudonyms) == "Zoé Zoe\u0301"


def test_a_kind_that_declares_nothing_is_exact():
    assert CANONICAL("new_kind", "A b", "A b") == "A b" == EXACT.reduce("x", "A b")
    assert {"exact": EXACT, "number": NUMBER, "signed": SIGNED, "mail": MAIL} == IDENTITIES


@pytest.mark.parametrize("other", ["00-1A-2B-3C-4D-5E", "00:1a:2b:3c:4d:5e"])
def test_a_hardware_address_is_one_in_every_spelling(other):
    redactor = Redactor(RedactionPlan({"mac": "pseudonymise"}, {}))
    body = redactor.redact_body({"prompt": f"00:1A:2B:3C:4D:5E and {other}"}, LAYOUTS["completions"], "k7f3ab")
    first, second = body.body["prompt"].split(" and ")
    assert (first, second) == ("<MAC_1_k7f3ab>", "<MAC_1_k7f3ab2>")
    assert redactor.restore_text(body.body["prompt"], body.pseudonyms) == f"00:1A:2B:3C:4D:5E and {other}"
