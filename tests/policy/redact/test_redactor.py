import copy
import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.errors import RedactionBlocked, RedactionError
from policy.redact.actions.plan import LABELS, RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.detectors.detectors import Detector
from policy.redact.redactor import Redactor
from tests.policy.redact.layouts import LAYOUTS

NONCE = "k7f3"
MAIL = "alice@example.org"
PSEUDONYMISE = Redactor(RedactionPlan({label: "pseudonymise" for label in LABELS}, {}))
MASK = Redactor(RedactionPlan({label: "mask" for label in LABELS}, {}))


def chat(*messages, **more):
    return {"model": "m", "messages": list(messages), **more}


def user(content):
    return {"role": "user", "content": content}


POSITIONS = {
    "system": chat({"role": "system", "content": MAIL}),
    "developer": chat({"role": "developer", "content": MAIL}),
    "user": chat(user(f"I am {MAIL}.")),
    "assistant": chat({"role": "assistant", "content": MAIL}),
    "refusal": chat({"role": "assistant", "content": None, "refusal": MAIL}),
    "tool result": chat({"role": "tool", "tool_call_id": "c1", "content": f'{{"mail": "{MAIL}"}}'}),
    "escaped tool result": chat(
        {"role": "tool", "tool_call_id": "c1", "content": '{"mail": "alice\\u0040example.org"}'}),
    "text part": chat(user([{"type": "text", "text": MAIL}])),
    "part of plain text": chat(user([MAIL])),
    "message name": chat({"role": "user", "name": MAIL, "content": "hi"}),
    "tool call arguments": chat({"role": "assistant", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "send", "arguments": json.dumps({"to": [MAIL]})}}]}),
    "escaped arguments": chat({"role": "assistant", "tool_calls": [
        {"id": "c1", "function": {"name": "send", "arguments": '{"to": "alice\\u0040example.org"}'}}]}),
    "arguments twice named": chat({"role": "assistant", "tool_calls": [
        {"id": "c1", "function": {"name": "send", "arguments": f'{{"to": "{MAIL}", "to": "x"}}'}}]}),
    "broken arguments": chat({"role": "assistant", "tool_calls": [
        {"id": "c1", "function": {"name": "send", "arguments": '{"to": "alice\\u0040example.org'}}]}),
    "arguments that are text": chat(
        {"role": "assistant", "function_call": {"name": "send", "arguments": f"to {MAIL}"}}),
    "name inside arguments": chat({"role": "assistant", "tool_calls": [
        {"id": "c1", "function": {"name": "send", "arguments": json.dumps({MAIL: 1})}}]}),
    "tool call id": chat({"role": "tool", "tool_call_id": MAIL, "content": "ok"}),
    "function name": chat(
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": MAIL, "arguments": "{}"}}]}),
    "role": chat({"role": MAIL, "content": "hi"}),
    "user field": chat(user("hi"), user=MAIL),
    "metadata value": chat(user("hi"), metadata={"who": MAIL}),
    "metadata name": chat(user("hi"), metadata={MAIL: "x"}),
    "tool description": chat(user("hi"), tools=[{"type": "function", "function": {"name": "f", "description": MAIL}}]),
    "parameter description": chat(user("hi"), tools=[
        {"function": {"parameters": {"properties": {"a": {"description": MAIL}}}}}]),
    "stop string": chat(user("hi"), stop=MAIL),
    "stop list": chat(user("hi"), stop=["x", MAIL]),
    "prediction": chat(user("hi"), prediction={"type": "content", "content": MAIL}),
    "response format": chat(user("hi"), response_format={"json_schema": {"schema": {"description": MAIL}}}),
    "unknown field": chat(user("hi"), something_new={"deep": [[{"er": MAIL}]]}),
    "unknown field's name": chat(user("hi"), **{MAIL: 1}),
    "unknown message field": chat({"role": "user", "content": "hi", "extra": {"note": MAIL}}),
    "message that is text": chat(MAIL),
    "content that is a mapping": chat({"role": "user", "content": {"text": MAIL}}),
    "messages that are a mapping": {"model": "m", "messages": {"a": MAIL}},
}  # fmt: skip
COMPLETIONS = {
    "prompt": {"model": "m", "prompt": MAIL},
    "prompt list": {"model": "m", "prompt": ["a", MAIL]},
    "suffix": {"model": "m", "prompt": "a", "suffix": MAIL},
}


@pytest.mark.parametrize("redactor", [PSEUDONYMISE, MASK], ids=["pseudonymise", "mask"])
@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        *(pytest.param(body, "chat", id=name) for name, body in POSITIONS.items()),
        *(pytest.param(body, "completions", id=name) for name, body in COMPLETIONS.items()),
    ],
)
def test_an_address_in_any_position_never_leaves(body, endpoint, redactor):
    before = copy.deepcopy(body)
    result = redactor.redact_body(body, LAYOUTS[endpoint], NONCE)
    sent = json.dumps(result.body)
    assert "alice" not in sent and "EMAIL" in sent
    assert result.changed and result.counts["email"] == 1
    assert body == before, "the caller's body is not touched"


@pytest.mark.parametrize("redactor", [PSEUDONYMISE, MASK], ids=["pseudonymise", "mask"])
def test_tool_call_arguments_stay_valid_json_with_a_number_masked(redactor):
    arguments = '{"card": 4111111111111111, "mail":"alice@example.org",  "n": 12, "t": true}'
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    sent = redactor.redact_body(chat(message), LAYOUTS["chat"], NONCE).body["messages"][0]["tool_calls"][0]["function"][
        "arguments"
    ]
    read = json.loads(sent)
    assert read["n"] == 12 and read["t"] is True and "4111" not in sent and "alice" not in sent
    assert sent.startswith('{"card": "') and ',  "n": 12' in sent, "spacing stays"


def test_a_card_sent_as_a_number_is_found_and_a_seed_is_left_alone():
    body = chat(user("hi"), metadata={"card": 4111111111111111, "count": 12}, seed=4111111111111111, temperature=0.2)
    sent = MASK.redact_body(body, LAYOUTS["chat"], NONCE).body
    assert sent["metadata"] == {"card": "[CARD]", "count": 12}
    assert sent["seed"] == 4111111111111111 and sent["temperature"] == 0.2


def test_a_clean_body_comes_back_as_the_same_object():
    body = chat(user("What is the capital of France?"), temperature=0, tools=[{"type": "function"}])
    result = PSEUDONYMISE.redact_body(body, LAYOUTS["chat"], NONCE)
    assert result.body is body and not result.changed and not result.counts and len(result.pseudonyms) == 0


def test_without_input_rules_nothing_is_touched_and_token_ids_pass():
    off = Redactor(RedactionPlan({}, {"email": "mask"}))
    body = {"model": "m", "prompt": [1, 2, 3]}
    assert off.redact_body(body, LAYOUTS["completions"], NONCE).body is body


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"prompt": [1, 2, 3]}, "completions"),
        ({"prompt": [[1, 2], [3]]}, "completions"),
        ({"prompt": ["text", [1, 2]]}, "completions"),
        ({"prompt": None}, "completions"),
        ({"prompt": "x", "prompt_embeds": "AAAA"}, "completions"),
        (chat(user("x"), prompt_token_ids=[1, 2]), "chat"),
        (chat(user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])), "chat"),
        (chat(user([{"type": "text", "text": "x", "image_url": {"url": "data:"}}])), "chat"),
        (chat(user([{"type": "input_audio", "input_audio": {"data": "AAAA"}}])), "chat"),
        (chat(user([{"type": "something_new", "text": "x"}])), "chat"),
        (chat(user([{"text": "no type"}])), "chat"),
        (chat(user([7])), "chat"),
    ],
)
def test_what_cannot_be_read_as_text_is_refused_with_a_hint(body, endpoint):
    with pytest.raises(RedactionBlocked, match="cannot be inspected while redaction is on") as refusal:
        PSEUDONYMISE.redact_body(body, LAYOUTS[endpoint], NONCE)
    assert refusal.value.labels == ("unreadable",)


def test_block_names_every_label_and_position_and_no_value():
    blocking = Redactor(RedactionPlan({"secret": "block", "email": "block", "iban": "mask"}, {}))
    body = chat(user(f"{MAIL} sk-abcdEFGH1234567890abcd"), metadata={MAIL: {"k": "sk-abcdEFGH1234567890abcd"}})
    with pytest.raises(RedactionBlocked) as refusal:
        blocking.redact_body(body, LAYOUTS["chat"], NONCE)
    assert refusal.value.labels == ("email", "secret")
    positions = [finding.position for finding in refusal.value.findings]
    assert positions == ["messages[0].content", "messages[0].content", "metadata.* (its name)", "metadata.*.*"]
    assert "alice" not in str(refusal.value) and "abcd" not in str(refusal.value)


def test_a_failing_detector_denies_and_tells_nothing():
    def fails(text, start):
        raise RuntimeError(f"cannot read {text}")

    broken = Redactor(RedactionPlan({"email": "mask"}, {}), detectors=[Detector("email", fails)])
    with pytest.raises(RedactionError, match=r"^detector email failed with RuntimeError; report it to the operator$"):
        broken.redact_body(chat(user(MAIL)), LAYOUTS["chat"], NONCE)


def test_a_detector_that_yields_nonsense_denies():
    nonsense = Redactor(RedactionPlan({"email": "mask"}, {}), detectors=[Detector("email", lambda text, start: [None])])
    with pytest.raises(RedactionError):
        nonsense.redact_body(chat(user(MAIL)), LAYOUTS["chat"], NONCE)


def test_a_body_that_is_no_json_or_too_deep_denies():
    deep = "x"
    for _ in range(100):
        deep = [deep]
    for bad in (deep, {"a": object()}, {"a": (1, 2)}, {"a": b"bytes"}):
        with pytest.raises(RedactionError):
            MASK.redact_body(chat(user("x"), extra=bad), LAYOUTS["chat"], NONCE)


def test_names_that_would_collide_once_masked_deny_rather_than_lose_one():
    with pytest.raises(RedactionError, match="the same once redacted"):
        MASK.redact_body(chat(user("x"), metadata={MAIL: 1, "bob@example.org": 2}), LAYOUTS["chat"], NONCE)
    assert PSEUDONYMISE.redact_body(
        chat(user("x"), metadata={MAIL: 1, "bob@example.org": 2}), LAYOUTS["chat"], NONCE
    ).changed


def test_a_plan_nobody_can_carry_out_is_refused_at_once():
    with pytest.raises(RedactionError, match="no detector finds iban"):
        Redactor(RedactionPlan({"iban": "mask"}, {}), detectors=[])
    with pytest.raises(RedactionError, match="no key"):
        Redactor(RedactionPlan({"iban": "hash"}, {}))


def test_a_hash_joins_spellings_under_one_key_and_nothing_across_keys():
    plan = RedactionPlan({"iban": "hash"}, {})
    body = chat(user("DE89 3704 0044 0532 0130 00"), user("de89370400440532013000"))
    sent = [
        Redactor(plan, hash_key=key).redact_body(body, LAYOUTS["chat"], NONCE).body["messages"]
        for key in (b"one", b"two")
    ]
    assert sent[0][0] == sent[0][1] and sent[0] != sent[1] and sent[0][0]["content"].startswith("[IBAN:")


def test_tag_counts_and_sends_the_original():
    body = chat(user(MAIL))
    result = Redactor(RedactionPlan({"email": "tag"}, {})).redact_body(body, LAYOUTS["chat"], NONCE)
    assert result.body is body and result.counts == {"email": 1}


@pytest.mark.parametrize("disguise", [
    "alice\u200b@example.org", "alice\u00ad@ex\u2060ample.org", "\uff41lice\uff20example.org",
    "𝐚lice@example.org"])  # fmt: skip
def test_a_disguised_address_is_found_and_comes_back_as_written(disguise):
    result = PSEUDONYMISE.redact_body(chat(user(f"Hi {disguise}!")), LAYOUTS["chat"], NONCE)
    assert result.body["messages"][0]["content"] == "Hi <EMAIL_1_k7f3>!"
    assert PSEUDONYMISE.restore_text("<EMAIL_1_k7f3>", result.pseudonyms) == disguise


@pytest.mark.parametrize("iban", ["DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
                                  "ＤＥ８９３７０４００４４０５３２０１３０００",
                                  "DE89\u20093704\u20090044\u20090532\u20090130\u200900"])  # fmt: skip
def test_an_iban_in_any_blanks_or_widths_is_found(iban):
    assert MASK.redact_body(chat(user(iban)), LAYOUTS["chat"], NONCE).body["messages"][0]["content"] == "[IBAN]"


def test_one_value_has_one_placeholder_in_the_whole_request():
    body = chat(user(f"{MAIL} and bob@example.org"), user(MAIL.upper()), metadata={"who": MAIL})
    result = PSEUDONYMISE.redact_body(body, LAYOUTS["chat"], NONCE)
    assert [m["content"] for m in result.body["messages"]] == ["<EMAIL_1_k7f3> and <EMAIL_2_k7f3>", "<EMAIL_1_k7f32>"]
    assert result.body["metadata"] == {"who": "<EMAIL_1_k7f3>"} and len(result.pseudonyms) == 2


@pytest.mark.parametrize("forged", ["<EMAIL_1_k7f3>", "<email_1_K7F3>", "< EMAIL_1_k7f3 >", "\\<EMAIL\\_1\\_k7f3\\>",
                                    "<EMAIL_1_\u200bk7f3>", "<EMAIL_1_zzzz>", "EMAIL_1_k7f3",
                                    "email 1 K7F3"])  # fmt: skip
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_placeholder_a_user_typed_comes_back_as_typed_and_never_as_a_value(forged, order):
    texts = [forged, MAIL] if order == "before" else [MAIL, forged]
    result = PSEUDONYMISE.redact_body(chat(*map(user, texts)), LAYOUTS["chat"], NONCE)
    sent = [message["content"] for message in result.body["messages"]]
    assert "<LITERAL_" in sent[texts.index(forged)] and "EMAIL" in sent[texts.index(MAIL)]
    assert [PSEUDONYMISE.restore_text(text, result.pseudonyms) for text in sent] == texts


def test_a_nonce_that_could_be_guessed_or_misread_is_refused():
    for nonce in ("", "abc", "k7f3-", "K7F3", "x" * 13):
        with pytest.raises(RedactionError):
            Pseudonyms(nonce)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | st.just(MAIL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.text(string.ascii_letters, max_size=8).filter(lambda name: name != "model"), json_values, max_size=5
    )
)
def test_no_json_body_lets_an_address_through(body):
    try:
        sent = PSEUDONYMISE.redact_body(body, LAYOUTS["chat"], NONCE).body
    except RedactionError:
        return  # refused is safe
    assert MAIL not in json.dumps(sent, ensure_ascii=False)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([MAIL, "DE89 3704 0044 0532 0130 00", "word", "<EMAIL_1_k7f3>", "é", "\n", " ", "1"]),
        max_size=12,
    )
)
def test_what_was_pseudonymised_is_restored_exactly(pieces):
    text = " ".join(pieces)
    result = PSEUDONYMISE.redact_body(chat(user(text)), LAYOUTS["chat"], NONCE)
    assert PSEUDONYMISE.restore_text(result.body["messages"][0]["content"], result.pseudonyms) == text
