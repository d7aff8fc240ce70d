"""Any form of a placeholder whose nonce and number are right is restored, in any pieces; nothing else is."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.redact.actions.placeholder_forms import search
from policy.redact.actions.plan import OUTPUT_LABELS, RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.redactor import Redactor

NONCE = "k7f3ab"
VALUE, OTHER = "alice@example.org", "twelve@example.org"
RESTORE_ONLY = Redactor(RedactionPlan({"email": "pseudonymise"}, {}))
ALL_MASKED = Redactor(RedactionPlan({}, {label: "mask" for label in OUTPUT_LABELS}))
REDACTORS = pytest.mark.parametrize("redactor", [RESTORE_ONLY, ALL_MASKED], ids=["restoring", "redacting"])


def pseudonyms(value=VALUE):
    result = Pseudonyms(NONCE)
    for number in range(1, 12):
        result.placeholder("email", value if number == 1 else f"person{number}@example.org")
    result.placeholder("email", OTHER)
    return result


def streamed(redactor, text, size, *, json_escaped=False, value=VALUE):
    stream = redactor.stream_filter(pseudonyms(value), json_escaped=json_escaped)
    return "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.flush()


FORMS = [
    ("EMAIL1k7f3ab", "V"), ("<EMAIL1k7f3ab>", "V"), ("EMAIL_1k7f3ab", "V"), ("EMAIL1_K7F3AB", "V"),
    ("<EMAIL_\n1_k7f3ab>", "V"), ("<EMAIL_1_\n  k7f3ab>", "V"), ("EMAIL_\n1_k7f3ab", "V"),
    ("<\nEMAIL_1_k7f3ab\n>", "V"),
    ("<E-MAIL_1_k7f3ab>", "V"), ("<EMAIL_ADDRESS_1_k7f3ab>", "V"), ("<MAIL_1_k7f3ab>", "V"), ("<1_k7f3ab>", "V"),
    ("<Courriel_1_k7f3ab>", "V"), ("<adresse e-mail 1 k7f3ab>", "V"), ("<Адрес_1_k7f3ab>", "V"),
    ("<電子メール_1_k7f3ab>", "V"), ("<البريد_1_k7f3ab>", "V"), ("<correo.1.k7f3ab>", "V"), ("MAIL_1_k7f3ab", "V"),
    ("E-Mail-Adresse_1_k7f3ab", "V"), ("電子メール_1_k7f3ab", "電子メールV"), ("Mail 1 k7f3ab", "Mail V"),
    ("send_to_email_1_k7f3ab", "send_to_V"), ("send\\_to\\_email\\_1\\_k7f3ab", "send\\_to\\_V"),
    ("user-EMAIL_1_k7f3ab-new", "user-V-new"), ("IBAN_1_k7f3ab", "V"), ("EMAIL_01_k7f3ab", "V"),
    ("<EMAIL_1_k7f3abs>", "Vs"), ("<EMAIL_1_k7f3ab's>", "V's"), ("EMAIL_1_k7f3abn", "Vn"),
    ("<<EMAIL_1_k7f3ab>>", "<V>"),
    ("%3CEMAIL_1_k7f3ab%3E", "V"), ("%3cEMAIL%5F1%5Fk7f3ab%3e", "V"), ("&lt;EMAIL_1_k7f3ab&gt;", "V"),
    ("https://x.de/?to=%3CEMAIL_1_k7f3ab%3E&b=1", "https://x.de/?to=V&b=1"), ("&#60;EMAIL_1_k7f3ab&#62;", "V"),
    ('{"m":"\\u003cEMAIL_1_k7f3ab\\u003e"}', '{"m":"V"}'),
    ('{"m":"\\u003CEMAIL\\u005f1\\u005fk7f3ab\\u003E"}', '{"m":"V"}'),
    ('{"a":"{\\"m\\":\\"\\\\u003cEMAIL_1_k7f3ab\\\\u003e\\"}"}', '{"a":"{\\"m\\":\\"V\\"}"}'),
    ("8%201k7f3ab", "8%20V"),
    ("\\u0044\\_1_k7f3ab", "V"), ("\\&lt;MAIL_1_k7f3ab>", "V"), ("%3EMAIL_1_k7f3ab", "%3EV"),
    ("a < b and <EMAIL_1_k7f3ab>", "a < b and V"), ("if x <EMAIL_1_k7f3ab", "if x <V"), ("(EMAIL_1_k7f3ab)", "(V)"),
    ("<EMAIL_12_k7f3ab><EMAIL_1_k7f3ab>", "WV"), ("EMAIL_1_k7f3ab EMAIL_12_k7f3ab", "V W"),
]  # fmt: skip
ENCODED = [
    ("a b&c@example.org", "?to=%3CEMAIL_1_k7f3ab%3E", "?to=a%20b%26c@example.org"),
    ('a"b\\c@example.org', '{"m":"\\u003cEMAIL_1_k7f3ab\\u003e"}', '{"m":"a\\"b\\\\c@example.org"}'),
    ("a<b>@example.org", "<i>&lt;EMAIL_1_k7f3ab&gt;</i>", "<i>a&lt;b&gt;@example.org</i>"),
]
NOT_OURS = [
    "EMAIL_1_k7f3a", "<EMAIL_1_k7f3ac>", "EMAIL_1_xk7f3ab", "<EMAIL_13_k7f3ab>", "EMAIL_1_k7f3abcdefg",
    "EMAIL_1_k7f3ab7",
    "<EMAIL_0_k7f3ab>", "EMAIL_k7f3ab", "%3CEMAIL_1_zzzzzz%3E", "\\u003cEMAIL_1_zzzzzz\\u003e", "EMAIL1zzzzzz",
    "EMAIL_1_x_k7f3ab", "<EMAIL_1234567890123_k7f3ab>", "1.5 k7f3a",
]  # fmt: skip


@REDACTORS
@pytest.mark.parametrize(("form", "restored"), FORMS, ids=[form for form, _ in FORMS])
def test_a_form_with_the_right_nonce_and_number_is_restored_in_any_pieces(redactor, form, restored):
    text = f"To {form} now"
    expected = f"To {restored.replace('V', VALUE).replace('W', OTHER)} now"
    assert {streamed(redactor, text, size) for size in range(1, len(text) + 1)} == {expected}


@REDACTORS
@pytest.mark.parametrize(("form", "restored"), FORMS, ids=[form for form, _ in FORMS])
def test_the_same_form_is_restored_in_tool_arguments_which_stay_json(redactor, form, restored):
    for ascii_only in (True, False):
        text = json.dumps({"to": form}, ensure_ascii=ascii_only)
        made = {streamed(redactor, text, size, json_escaped=True) for size in (1, 2, 3, 7, len(text))}
        assert len(made) == 1
        assert json.loads(made.pop()) == {"to": restored.replace("V", VALUE).replace("W", OTHER)}


@pytest.mark.parametrize(("value", "form", "expected"), ENCODED)
def test_a_value_is_escaped_as_its_placeholder_was(value, form, expected):
    assert {streamed(RESTORE_ONLY, form, size, value=value) for size in range(1, len(form) + 1)} == {expected}


@pytest.mark.parametrize("form", NOT_OURS)
def test_another_nonce_or_number_stays_text(form):
    text = f"a {form} b"
    assert {streamed(RESTORE_ONLY, text, size) for size in range(1, len(text) + 1)} == {text}


signs = st.sampled_from([
    *"<>_- \n\\1203", "k7f3ab", "k7f", "3ab", "EMAIL", "MAIL", "%3C", "%3", "E", "&lt;", "&", "\\u003c", "\\u00",
    "a", "é",
    "メ", "1_k7f3ab", "EMAIL_1_", "s", ">", "'s", ".", "%5F", "12", "\\n", "word ", "\u200b",
])  # fmt: skip


@REDACTORS
@settings(max_examples=400, deadline=None)
@given(parts=st.lists(signs, max_size=14), size=st.integers(1, 6), json_escaped=st.booleans())
def test_any_chunking_of_anything_like_a_placeholder_gives_the_same_text(redactor, parts, size, json_escaped):
    text = "".join(parts)
    whole = redactor.restore_text(text, pseudonyms(), json_escaped=json_escaped)
    assert streamed(redactor, text, size, json_escaped=json_escaped) == whole


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(signs, max_size=14))
def test_without_the_nonce_nothing_changes(parts):
    text = "".join(parts).replace("k7f3ab", "k7f3ac")
    assert RESTORE_ONLY.restore_text(text, pseudonyms()) == text or "k7f3ab" in text.lower().replace("\u200b", "")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.sampled_from([form for form, _ in FORMS]), st.text(max_size=30))
def test_where_a_placeholder_is_found_its_nonce_stands_inside(before, form, after):
    text = before + form + after
    for each in search(text, 0, pseudonyms(), final=True).mentions:
        assert 0 <= each.start < each.end <= len(text) and NONCE in text[each.start : each.end].lower()


@pytest.mark.parametrize("unit", ["<a ", "EMAIL_1_", "k7f3ab", "1 k7f3ab ", "<EMAIL_1_k7f3ab", "_-\\", "%3C", "&lt;a "])
def test_what_is_held_back_is_bounded(unit):
    stream = RESTORE_ONLY.stream_filter(pseudonyms())
    for _ in range(600):
        stream.feed(unit)
        assert len(stream._pending) <= 300
