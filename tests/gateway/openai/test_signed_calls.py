"""Gemini's signatures of tool calls under redaction: they pass as they are, and nothing that can be read passes so."""

import json
import random
from base64 import b64encode, urlsafe_b64encode

import pytest

from gateway.openai.answer import MAX_SIGNATURE, rewrite_body
from gateway.openai.checked_call import parse_call
from gateway.openai.endpoints import ENDPOINTS
from policy.redact.actions.plan import LABELS, OUTPUT_LABELS, RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.redactor import Redactor
from tests.gateway.openai.test_stream_filter import chunk, streamed
from tests.policy.redact.layouts import CHAT

MASKING = Redactor(RedactionPlan(input=dict.fromkeys(LABELS, "mask"), output=dict.fromkeys(OUTPUT_LABELS, "mask")))
RANDOM = random.Random(20261129)  # seeded, so that a failure can be repeated
GENUINE = [b64encode(RANDOM.randbytes(size)).decode() for size in (6, 32, 200, 1500, 6000)]
MAIL = "carl@example.org"
HIDDEN = [
    MAIL, b64encode(f"write to {MAIL} or call".encode()).decode(),
    urlsafe_b64encode(f"\x01{MAIL}\x00".encode()).decode(),
    b64encode(b"account DE89370400440532013000").decode(), "DE89370400440532013000",
    b64encode(b"\xff\xfe" + f" {MAIL} ".encode() + b"\xff").decode(),
]  # fmt: skip
NO_SIGNATURE = ["", "=", "two words", "a\nb", "ä" * 8, "x" * (MAX_SIGNATURE + 1), 7, None, ["c2ln"], {"a": "c2ln"}]


def signed(signature, **more):
    return {"google": {"thought_signature": signature, **more}}


def call(extra):
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": extra}


def whole(extra):
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [call(extra)]}}]}
    rewrite_body(body, lambda escaped: MASKING.stream_filter(Pseudonyms("k7f3"), json_escaped=escaped))
    return body["choices"][0]["message"]["tool_calls"][0].get("extra_content")


def in_stream(extra, *, apart=False):
    """`apart`: the signature comes in a chunk of its own, behind the call's."""
    one = {"index": 0, **call(extra)}
    parts = [one]
    if apart:
        parts = [{k: v for k, v in one.items() if k != "extra_content"}, {"index": 0, "extra_content": extra}]
    sent = [json.loads(payload) for payload in streamed([chunk({"tool_calls": [part]}) for part in parts], "mask")]
    calls = [c for each in sent for choice in each["choices"] for c in choice["delta"].get("tool_calls") or ()]
    found = [c["extra_content"] for c in calls if "extra_content" in c]
    return found[0] if found else None


WAYS = [whole, in_stream, lambda extra: in_stream(extra, apart=True)]


@pytest.mark.parametrize("way", WAYS, ids=["whole", "streamed", "apart"])
@pytest.mark.parametrize("signature", GENUINE, ids=len)
def test_a_signature_reaches_the_client_as_it_is(way, signature):
    assert way(signed(signature)) == signed(signature)


@pytest.mark.parametrize("way", WAYS, ids=["whole", "streamed", "apart"])
@pytest.mark.parametrize("text", HIDDEN)
def test_what_can_be_read_in_a_signature_is_not_passed(way, text):
    assert way(signed(text)) is None


@pytest.mark.parametrize("odd", NO_SIGNATURE, ids=lambda odd: repr(odd)[:20])
def test_what_is_no_signature_is_not_passed(odd):
    assert whole(signed(odd)) is None


@pytest.mark.parametrize(
    "extra", [None, [], "c2ln", {}, {"google": None}, {"google": ["c2ln"]}, {"other": {"a": "c2ln"}}]
)
def test_extra_content_of_another_form_is_not_passed(extra):
    assert whole(extra) is None


def test_nothing_stands_beside_a_signature():
    assert whole({**signed("c2lnbmVk", note=MAIL), "other": MAIL}) == signed("c2lnbmVk")


@pytest.mark.parametrize("signature", GENUINE, ids=len)
def test_a_signature_that_comes_back_reaches_the_backend_as_it_is(signature):
    history = [{"role": "user", "content": "hello"}, {"role": "assistant", "tool_calls": [call(signed(signature))]},
               {"role": "tool", "tool_call_id": "c1", "content": "42"}]  # fmt: skip
    raw = json.dumps({"model": "m", "messages": history}).encode()
    body = parse_call(next(each for each in ENDPOINTS if each.path.endswith("chat/completions")), raw).body
    redacted = MASKING.redact_body(body, CHAT, "k7f3")
    assert redacted.body["messages"][1]["tool_calls"][0]["extra_content"] == signed(signature)


@pytest.mark.parametrize("text", HIDDEN[:2] + HIDDEN[3:5])
def test_what_a_caller_hides_in_a_signature_is_redacted(text):
    history = [{"role": "assistant", "tool_calls": [call(signed(text))]}]
    redacted = MASKING.redact_body({"model": "m", "messages": history}, CHAT, "k7f3")
    assert text not in json.dumps(redacted.body)
