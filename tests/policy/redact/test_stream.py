import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policy.errors import RedactionBlocked, RedactionError
from policy.redact.actions.plan import LABELS, OUTPUT_LABELS, RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.detectors.detectors import Detector
from policy.redact.redactor import Redactor
from policy.redact.stream import LONGEST_GROUPED, LONGEST_PEM, LONGEST_RUN
from policy.redact.text.json_text import escaped
from tests.fakes.work import calls
from tests.policy.redact.layouts import LAYOUTS

NONCE = "k7f3"
ALL_MASKED = Redactor(
    RedactionPlan({label: "pseudonymise" for label in LABELS}, {label: "mask" for label in OUTPUT_LABELS})
)
RESTORE_ONLY = Redactor(RedactionPlan({"email": "pseudonymise"}, {}))
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "MIIEowIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9Oi\n" * 4
    + "abc=\n-----END RSA PRIVATE KEY-----"
)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"

PIECES = [
    "alice@example.org", "bob.o'neil+x@sub.example.co.uk", "müller@bücher.de", "DE89 3704 0044 0532 0130 00",
    "DE89370400440532013000", "GB29 NWBK 6016 1331 9268 19", "MT84 MALT 0110 0001 2345 MTLC AST0 01S",
    "DE88 3704 0044 0532 0130 00", "4111 1111 1111 1111", "4111111111111111", "4111-1111-1111-1112",
    "+49 (0)30 901820", "Tel.: 030 901820", "030 - 90 18 20", "10.1.2.3", "2001:db8::1", "1.2.3.4.5",
    "sk-abcdEFGH1234567890abcd", JWT, PEM, "-----BEGIN CERTIFICATE-----", "-----BEGIN PRIVATE KEY----- is a line",
    "<EMAIL_1_k7f3>", "<email 1 k7f3>", "\\<EMAIL\\_1\\_k7f3\\>", "< EMAIL_10_k7f3 >", "<EMAIL_2_k7f3>",
    "DE136695976", "IMEI 490154203237518", "00:1b:44:11:3a:b7", "BIC: COBADEFFXXX", "geboren 12.05.1980",
    "PESEL: 44051401359",
    "postgres://app:s3cret9x@db.example.org/x", "password: hunter2Xyz9", "FR83404833048",
    "https://bob:hunt!er2X@db.example.org/x", "password: hunt!er2$Xyz9&", '"token": "Ab,1;c|d2^ef"',
    "secret=?aB3*xY9!z", 'password: a"b1c2d3e4', "mdp : L'ete2024!", "pwd='it's4me!x'", "CVC: 123", "a[::-1]",
    "081109 203615 148 INFO",
    "x,0.246783997558", "(1756 - 1791)", "id=4980916519894289629", "client 192.0.2.7", "127.0.0.1:8000", "NHC: 2345678",
    "curl -u bob:hun!Ter2x", "Bearer a1!b2@c3#d4$e5", "passwort ist Hun*Ter", "pwd: ", "token",
    "<EMAIL_1_zzzz>", "<LITERAL_1_k7f3>", "EMAIL_1_k7f3", "email 10 K7F3", "EMAIL-1-k7f3", "_EMAIL\\_1\\_k7f3_",
    "EMAIL", "EMAIL_1_k7f3x", "EMAIL 1", "<EMAIL_1_k7f3", "EMAIL_1_k7f3>", "in 2024 email 1 k7f3",
    "<div>", "a < b", "List<String>", "\\frac{1}{2}", "C:\\new", "std::vector",
    "gateway", "the", "In 2024", "1 2 3 4 5 6 7 8 9", "AB12 this is", "NATO", "-", "--", "x-----BEGIN PRIVATE KEY-----",
    "RSSMRA85T10A562S", "1 85 05 78 006 084 91", "12345678Z", "日本語のテキスト", "Δοκιμή", "тест",
    "４１１１１１１１１１１１１１１１",
    "4111\u200b1111\u200b1111\u200b1111", "alice\u00ad@example.org",
    "DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
    "é", "…", "🙂",
    "ﬁ@ex.org", "1½", "⑩", "ﷲ", "ŀ", "㎏" * 90, "4111111111111⑪⑪⒈", "x@ofﬁce.example", "¨",
    "word" * 30, "9" * 50, "a" * 700, "1 " * 100, "eyJ" + "a1" * 500 + ".eyJ" + "b2" * 600,
]  # fmt: skip
LONG_PEM = (
    "-----BEGIN PRIVATE KEY-----\\n" + "MIIEowIBAAKCAQEA3Tz2mr7SZiAMfQyuvBjM9Oi\\n" * 450 + "-----END PRIVATE KEY-----"
)
JOINTS = ["", " ", "  ", "\n", ", ", ". ", "\u00a0", "\u200b", " - ", "/", ":", "(", ")", '"', "'", "    "]

texts = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(JOINTS)), max_size=8).map(
    lambda pairs: "".join(piece + joint for piece, joint in pairs)
)
any_texts = st.one_of(texts, st.text(alphabet="aD8 9@.-<>_1\\k7f3EMAIL\u200bé4ﬁ½⑩", max_size=60), st.text(max_size=40))
cuts = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def pseudonyms(count: int = 12) -> Pseudonyms:
    result = Pseudonyms(NONCE)
    for number in range(count):
        result.placeholder("email", f"person{number}@restored.example")
    result.placeholder("LITERAL", "<EMAIL_1_k7f3>")
    return result


def split(text: str, sizes: list[int]) -> list[str]:
    pieces, at, turn = [], 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        pieces.append(text[at : at + size])
        at, turn = at + size, turn + 1
    return pieces


def streamed(redactor: Redactor, pieces: list[str], *, json_escaped: bool = False) -> str:
    stream = redactor.stream_filter(pseudonyms(), json_escaped=json_escaped)
    return "".join(map(stream.feed, pieces)) + stream.flush()


@settings(max_examples=400, deadline=None)
@given(any_texts, cuts)
@example("AB12 hello there", [1])
@example("DE89 3704 0044 0532 0130 00. ", [1])
@example(PEM + "\nand prose goes on", [3])
@example(f"The key: {LONG_PEM}. It is long", [97, 3])
def test_any_chunking_of_an_answer_gives_the_same_text(text, sizes):
    whole = ALL_MASKED.restore_text(text, pseudonyms())
    assert streamed(ALL_MASKED, split(text, sizes)) == whole


@settings(max_examples=150, deadline=None)
@given(any_texts, cuts)
def test_any_chunking_restores_the_same_when_nothing_is_redacted(text, sizes):
    assert streamed(RESTORE_ONLY, split(text, sizes)) == RESTORE_ONLY.restore_text(text, pseudonyms())


@settings(max_examples=250, deadline=None)
@given(any_texts, cuts, st.booleans(), st.text(alphabet='{}[]:, "\\u00e9n41', max_size=12))
def test_any_chunking_of_tool_arguments_gives_the_same_text_also_inside_an_escape(text, sizes, ascii_only, noise):
    arguments = json.dumps({"to": text, "n": 4111111111111111, "é": [text[:5]]}, ensure_ascii=ascii_only) + noise
    whole = ALL_MASKED.restore_text(arguments, pseudonyms(), json_escaped=True)
    assert streamed(ALL_MASKED, split(arguments, sizes), json_escaped=True) == whole


@settings(max_examples=250, deadline=None)
@given(texts, st.booleans())
def test_valid_tool_arguments_stay_valid_json(text, ascii_only):
    arguments = json.dumps({"to": text, "n": [4111111111111111, -4111111111111111, 1.5]}, ensure_ascii=ascii_only)
    json.loads(ALL_MASKED.restore_text(arguments, pseudonyms(), json_escaped=True))


words = st.lists(st.sampled_from(["gateway", "the", "In 2024", "🙂", "-", "Really!", "(so)"]), max_size=3).map(" ".join)
whole_pieces = st.sampled_from([p for p in PIECES if len(p) < 80 and "<" not in p and "-----" not in p])


@settings(max_examples=400, deadline=None)
@given(words, st.sampled_from(JOINTS), whole_pieces, st.sampled_from(JOINTS), words)
def test_one_value_in_an_answer_is_redacted_exactly_as_in_a_prompt(before, first, value, second, after):
    """Of one alone, for what a text shows of its country further on, a prompt has said and an answer has not yet."""
    masked = Redactor(
        RedactionPlan({label: "mask" for label in OUTPUT_LABELS}, {label: "mask" for label in OUTPUT_LABELS})
    )
    text = before + first + value + second + after
    body = masked.redact_body({"prompt": text}, LAYOUTS["completions"], NONCE).body
    assert masked.restore_text(text, Pseudonyms(NONCE)) == body["prompt"]


@pytest.mark.parametrize("sign", [*"!&*?^]}#%+=~", "€", "§", "×", "…", "–", "“", "🙂", "中"])
@pytest.mark.parametrize(
    "written",
    [
        "password: hunt{}er2Xyz9 then",
        "the password is hunter2{}Xyz9, he said",
        '{{"token": "hunt{}er2Xyz9", "n": 1}}',
        "password: 7{}hunter2Xyz9 then",
        "curl -u bob:hunt{}er2Xyz9 x",
        "api_key=hunt{}er2Xyz9 x",
    ],
)
def test_a_named_secret_in_an_answer_is_whole_whatever_signs_are_in_it(written, sign):
    text = written.format(sign)
    out = streamed(ALL_MASKED, list(text))
    assert "unt" not in out and "er2" not in out and "Xyz9" not in out
    assert out.startswith(text.split("hunt")[0].rstrip(sign).rstrip("7"))
    assert out.endswith(text.split("Xyz9")[1])


def test_a_log_in_of_a_url_in_an_answer_is_whole_whatever_signs_are_in_it():
    for sign in "!$&*?^[]{}#":
        assert "ter2x" not in streamed(ALL_MASKED, list(f"see https://bob:hun{sign}ter2x@db.example.org/x now"))


@pytest.mark.parametrize("unit", ["password: x!y ", "password=", "token ", "https://bob:a!", " -u a:b!c", "-p'a!b' "])
def test_names_of_secrets_and_no_end_of_them_cost_time_linear_in_the_text(unit):
    def cost(length: int) -> int:
        text = (unit * (length // len(unit) + 1))[:length]
        return calls(lambda: ALL_MASKED.restore_text(text, Pseudonyms(NONCE)))

    cost(500)
    assert cost(6_000) < 2.5 * cost(3_000)  # quadratic is 4


@pytest.mark.parametrize(
    "name", ["password", "mot de passe", "toegangscode", "palavra-passe", "contraseña", "PASSWORT"]
)
@pytest.mark.parametrize("before", ["", "a word of prose ", "long " * 30, "1234 then "])
@pytest.mark.parametrize("joint", [": ", " is ", "="])
def test_a_secret_is_found_behind_its_name_wherever_the_name_is_cut(name, before, joint):
    text = f"{before}{name}{joint}hunt!er2Xyz9 and more of it " + "plain words " * 9
    expected = ALL_MASKED.restore_text(text, Pseudonyms(NONCE))
    assert "er2Xyz9" not in expected
    for size in (1, 2, 3, 5, 7, 11, 80):
        assert streamed(ALL_MASKED, split(text, [size])) == expected


def test_prose_after_a_name_of_a_secret_is_released_as_before_it():
    stream = ALL_MASKED.stream_filter(Pseudonyms(NONCE))
    said = ["the password policy says ", *["that words go on "] * 8]
    assert [stream.feed(piece) for piece in said] == said
    assert not stream._named


def test_signs_hold_nothing_back_where_no_name_of_a_secret_stands():
    stream = ALL_MASKED.stream_filter(Pseudonyms(NONCE), json_escaped=False)
    assert [stream.feed(piece) for piece in ("Really! ", "Yes, ", "50 € ", "(or more)! ")] == [
        "Really! ", "Yes, ", "50 € ", "(or more)! ",
    ]  # fmt: skip


def test_a_placeholder_is_restored_however_the_model_bends_it():
    spellings = ["<EMAIL_1_k7f3>", "<email_1_K7F3>", "< EMAIL_1_k7f3 >", "<EMAIL 1 k7f3>", "<EMAIL_ 1_k7f3>"]
    spellings += ["\\<EMAIL\\_1\\_k7f3\\>", "**<EMAIL_1_k7f3>**", "`<EMAIL_1_k7f3>`", "<EMAIL_1_k7f3>s"]
    for spelling in spellings:
        restored = ALL_MASKED.restore_text(f"To {spelling} now", pseudonyms())
        assert restored.replace("**", "").replace("`", "").replace("s now", " now") == "To person0@restored.example now"


@pytest.mark.parametrize("redactor", [ALL_MASKED, RESTORE_ONLY], ids=["redacting", "restoring"])
@pytest.mark.parametrize(
    ("frame", "bent"),
    [("To {} now", "EMAIL_1_k7f3"), ("{}", "email_1_K7F3"), ("To {}.", "EMAIL 1 k7f3"), ("({})", "EMAIL-1-k7f3"),
     ("[{}]", "EMAIL_1_k7f3"), ("_{}_", "EMAIL_1_k7f3"), ("**{}**", "EMAIL\\_1\\_k7f3"), ("to={}", "EMAIL_1_k7f3"),
     ("<{}", "EMAIL_1_k7f3"), ("{}>", "EMAIL_1_k7f3"), ("日本{}語", "EMAIL_1_k7f3"),
     ("in 2024 {} 12", "email 1 k7f3"), ("{}'s", "EMAIL_1_k7f3"), ('{{"a": "{}"}}', "EMAIL_1_k7f3"),
     ("AB12 {} x", "EMAIL_1_k7f3"), ("{},", "EM\u200bAIL_1_k7f3")],
)  # fmt: skip
def test_a_placeholder_that_lost_its_brackets_is_restored_in_any_chunking(redactor, frame, bent):
    text, expected = frame.format(bent), frame.format("person0@restored.example")
    for size in range(1, len(text) + 1):
        assert streamed(redactor, split(text, [size])) == expected
        assert streamed(redactor, split(text, [size]), json_escaped=True) == expected


@pytest.mark.parametrize("redactor", [ALL_MASKED, RESTORE_ONLY], ids=["redacting", "restoring"])
@pytest.mark.parametrize("ending", ["s", "en", "nak", "iems"])
def test_the_ending_of_an_inflected_placeholder_stays_behind_its_value(redactor, ending):
    text = f"von EMAIL_1_k7f3{ending} her"
    results = {streamed(redactor, split(text, [size])) for size in range(1, len(text) + 1)}
    assert results == {f"von person0@restored.example{ending} her"}


@pytest.mark.parametrize("redactor", [ALL_MASKED, RESTORE_ONLY], ids=["redacting", "restoring"])
@pytest.mark.parametrize(
    "foreign",
    ["EMAIL_1_k7f", "EMAIL_1_k7f3x9", "EMAIL_1_k7f3abcde", "EMAIL_1_k7f33", "EMAIL_99_k7f3", "EMAIL_1_zzzz",
     "EMAIL_1_xk7f3", "EMAIL_k7f3", "EMAIL_1x_k7f3", "EMAIL_1_2_zk7f3", "EMAIL_0_k7f3", "EMAIL_1_____k7f3"],
)  # fmt: skip
def test_a_word_that_is_not_exactly_a_bare_placeholder_is_left_alone(redactor, foreign):
    for size in (1, 2, 3, 5, 40):
        assert streamed(redactor, split(f"a {foreign} b", [size])) == f"a {foreign} b"


def test_bare_placeholder_1_never_eats_placeholder_10():
    for size in range(1, 20):
        assert streamed(ALL_MASKED, split("EMAIL_10_k7f3 EMAIL_1_k7f3", [size])) == (
            "person9@restored.example person0@restored.example"
        )


def test_placeholder_1_never_eats_placeholder_10():
    assert streamed(ALL_MASKED, ["<EMAIL_1_k7f3> <EMAIL_1", "0_k7f3>"]) == (
        "person0@restored.example person9@restored.example"
    )


@pytest.mark.parametrize(
    "foreign", ["<EMAIL_1_zzzz>", "<EMAIL_99_k7f3>", "<EMAIL_1_k7f>", "<EMAIL_1_>", "%3CEMAIL_1_zzzz%3E"]
)
def test_a_placeholder_of_another_request_is_left_as_it_is(foreign):
    assert streamed(ALL_MASKED, list(foreign)) == foreign


def test_what_is_restored_is_not_masked_though_the_models_own_address_is():
    assert streamed(ALL_MASKED, ["<EMAIL_1_k7f3> or", " other@example.org"]) == "person0@restored.example or [EMAIL]"


def test_a_restored_value_is_escaped_inside_tool_arguments():
    names = Pseudonyms(NONCE)
    names.placeholder("email", '"q\\uote"@example.org')
    out = ALL_MASKED.restore_text('{"to": "<EMAIL_1_k7f3>"}', names, json_escaped=True)
    assert json.loads(out) == {"to": '"q\\uote"@example.org'}


def test_an_address_behind_json_escapes_is_found_in_tool_arguments():
    arguments = '{"to": "alice\\u0040example.org", "b": "\\u00e9t\\u00e9"}'
    assert json.loads(ALL_MASKED.restore_text(arguments, pseudonyms(), json_escaped=True)) == {
        "to": "[EMAIL]",
        "b": "été",
    }


def test_a_bare_number_in_tool_arguments_becomes_a_string_when_it_is_masked():
    out = ALL_MASKED.restore_text('{"n": -4111111111111111, "m": 12}', pseudonyms(), json_escaped=True)
    assert json.loads(out) == {"n": "[CARD]", "m": 12}


def test_prose_is_released_at_every_blank_and_at_most_one_word_is_held():
    stream = ALL_MASKED.stream_filter(pseudonyms())
    released = [stream.feed(piece) for piece in (" The", " gateway", " decides", ", and", " records", ".")]
    assert released == [" ", "The ", "gateway ", "decides, ", "and ", ""]
    assert stream.flush() == "records."


def test_text_in_a_script_without_blanks_is_not_held_back():
    stream = ALL_MASKED.stream_filter(pseudonyms())
    assert stream.feed("これは日本語の文章です") == "これは日本語の文章です"


def test_without_output_rules_only_a_possible_placeholder_is_held():
    stream = RESTORE_ONLY.stream_filter(pseudonyms())
    assert [stream.feed(p) for p in (" gate", "way", " a <", " b", ", 12", "24", " (", "<EMAIL_", "1_k7f3", ">x")] == [
        " ", "", "gateway a ", "", "< b, ", "1224", " (", "", "", "person0@restored.example",
    ]  # fmt: skip


def test_without_a_placeholder_nothing_is_held():
    stream = RESTORE_ONLY.stream_filter(Pseudonyms(NONCE))
    assert [stream.feed(p) for p in ("gate", "way <", "EMAIL_")] == ["gate", "way <", "EMAIL_"]


@pytest.mark.parametrize(
    ("endless", "bound"),
    [("a" * 5000, LONGEST_RUN), ("1 " * 3000, LONGEST_GROUPED), ("a@" * 2000, LONGEST_RUN),
     ("DE89 " * 1000, LONGEST_GROUPED), ("a.b" * 1000, LONGEST_RUN), ("<a" * 2000, 64), ("-" * 3000, 5),
     ("-----BEGIN PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEA\n" * 1500, LONGEST_PEM + 64)],
)  # fmt: skip
def test_what_is_held_back_is_bounded_whatever_arrives(endless, bound):
    stream = ALL_MASKED.stream_filter(pseudonyms())
    for at in range(0, len(endless), 7):
        stream.feed(endless[at : at + 7])
        assert len(stream._pending) <= bound + 7


def test_a_key_block_is_masked_as_a_whole_and_also_when_its_end_never_comes():
    assert streamed(ALL_MASKED, list(f"Key:\n{PEM}\nDone")) == "Key:\n[SECRET]\nDone"
    assert streamed(ALL_MASKED, list(PEM[:90])) == "[SECRET]"


def test_a_token_longer_than_any_window_leaves_nothing_behind():
    token = "eyJ" + "a1" * 100 + ".eyJ" + "b2" * 3000 + "." + "c3" * 40
    assert streamed(ALL_MASKED, split(f"It is {token} as asked", [11])) == "It is [SECRET] as asked"


def test_a_key_block_longer_than_any_window_leaves_nothing_behind():
    out = streamed(ALL_MASKED, split(f"The key:\n{LONG_PEM}. It is long", [301]))
    assert out == "The key:\n[SECRET]. It is long"


def test_a_card_among_other_numbers_is_found_while_they_are_left_alone():
    table = (
        " ".join(str(n) for n in range(100, 140)) + " 4111 1111 1111 1111 " + " ".join(str(n) for n in range(100, 140))
    )
    out = streamed(ALL_MASKED, split(table, [3]))
    assert "4111" not in out and "[CARD]" in out and out.startswith("100 101") and out.endswith("139")


def test_block_stops_the_stream_without_naming_the_value():
    blocking = Redactor(RedactionPlan({}, {"secret": "block"}))
    stream = blocking.stream_filter(Pseudonyms(NONCE))
    assert stream.feed("the key is ") == "the key is "
    with pytest.raises(RedactionBlocked) as refusal:
        stream.feed("sk-abcdEFGH1234567890abcd \n")
    assert refusal.value.labels == ("secret",) and "abcdEFGH" not in str(refusal.value)


def test_tag_counts_and_changes_nothing():
    tagging = Redactor(RedactionPlan({}, {"email": "tag"}))
    stream = tagging.stream_filter(Pseudonyms(NONCE))
    assert stream.feed("write to alice@example.org ") + stream.flush() == "write to alice@example.org "
    assert stream.counts == {"email": 1}


def test_a_failing_detector_fails_the_stream_and_not_the_redaction():
    def fails(text, start):
        raise ValueError(text)

    broken = Redactor(RedactionPlan({}, {"email": "mask"}), detectors=[Detector("email", fails)])
    with pytest.raises(RedactionError, match="detector email failed with ValueError"):
        broken.restore_text("alice1@example.org", Pseudonyms(NONCE))


def test_a_filter_with_nothing_to_do_says_so():
    nothing = Redactor(RedactionPlan({"email": "mask"}, {}))
    assert nothing.stream_filter(Pseudonyms(NONCE)).is_identity
    assert not nothing.stream_filter(pseudonyms()).is_identity
    assert not ALL_MASKED.stream_filter(Pseudonyms(NONCE)).is_identity


def test_a_value_escaped_for_json_reads_back():
    assert json.loads(f'"{escaped(chr(34) + chr(92) + chr(10))}"') == '"\\\n'


def test_every_detector_is_tried_in_the_streams_of_this_file():
    found = ALL_MASKED.stream_filter(pseudonyms())
    found.feed("\n".join(PIECES))
    found.flush()
    assert {label.partition(".")[0] for label in found.counts} == set(OUTPUT_LABELS)
