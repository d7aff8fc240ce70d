"""Commitments that policy demands are there or the call fails; they are kept apart from content, for their own time."""

import json
import time
from types import SimpleNamespace

import pytest

from audit.events.event import InferenceCompleted
from audit.events.private_value import Private, seal
from gateway.content.whole_answer import Handling, whole_answer
from gateway.errors import BackendFailed
from gateway.openai.endpoints import CHAT, EMBEDDINGS
from gateway.openai.finish import take_activations
from gateway.request.answer.commitments import are_demanded, confirm, with_commitments
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.relay import StreamRelay
from gateway.request.stages import Routed

DAY_MS = 86_400_000


def routed(commits=True, endpoint=CHAT, choices=1, subject="ada"):
    call = SimpleNamespace(endpoint=endpoint, choices=choices, request=SimpleNamespace(wants_usage_chunk=False))
    request = SimpleNamespace(call=call, subject=subject)
    allowed = SimpleNamespace(commits=commits, retention=SimpleNamespace(commitment_days=90))
    return Routed(request, SimpleNamespace(allowed=allowed), None, (), 0, b"")


def test_vectors_and_policies_that_do_not_ask_need_none():
    assert are_demanded(routed())
    for other in (routed(commits=False), routed(endpoint=EMBEDDINGS)):
        assert not are_demanded(other)
        confirm(other, ReceivedAnswer())
        assert with_commitments(None, other, ReceivedAnswer(activations={0: "AA"})) is None


@pytest.mark.parametrize("said", [{}, {0: "AA"}, {1: "AA"}])
def test_an_engine_that_does_not_say_all_of_them_has_failed(said):
    with pytest.raises(BackendFailed, match="did not commit to its activations"):
        confirm(routed(choices=2), ReceivedAnswer(activations=said))
    confirm(routed(choices=2), ReceivedAnswer(activations={0: "AA", 1: "AQ"}))


def test_without_content_they_are_kept_alone_under_the_person_and_their_own_time():
    kept = with_commitments(None, routed(), ReceivedAnswer(activations={1: "AQ", 0: "AA"}))
    assert (dict(kept.values), kept.subject, kept.retention_class) == (
        {"activations": ["AA", "AQ"]},
        "ada",
        "commitments_90d",
    )
    assert abs(kept.expires - time.time() * 1000 - 90 * DAY_MS) < DAY_MS


def test_beside_content_each_has_its_own_time():
    content = Private({"output": ["hello"]}, "ada", "content_7d", 7)
    kept = with_commitments(content, routed(), ReceivedAnswer(activations={0: "AA"}))
    event = InferenceCompleted(tenant="acme", request_id="r")
    sealed = {one.field: one for one in seal(event, "e", kept)[1]}
    assert {field: one.retention_class for field, one in sealed.items()} == {
        "output": "content_7d", "activations": "commitments_90d", "subject": "content_7d"
    }  # fmt: skip
    assert (sealed["output"].expires, sealed["subject"].expires) == (7, 7)
    assert sealed["activations"].expires > 7
    assert {one.subject for one in sealed.values()} == {"ada"}


@pytest.mark.parametrize("said", [None, 7, "", "not base64url!", ["AA"], "A" * ((16 << 20) + 1)])
def test_what_is_no_commitment_is_removed_and_not_taken(said):
    choice = {"index": 0, "activations": said}
    assert take_activations(choice) is None
    assert choice == {"index": 0}


def choice_of(index, **more):
    return {"index": index, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop", **more}


def test_a_whole_answer_loses_them_without_a_filter_too():
    body = {"id": "a", "choices": [choice_of(1, activations="AQ"), choice_of(0, activations="AA")]}
    whole = whole_answer(json.dumps(body).encode(), Handling(), None)
    assert b"activations" not in whole.raw
    assert dict(whole.summary.activations) == {0: "AA", 1: "AQ"}
    received = ReceivedAnswer()
    received.note(whole.summary)
    assert received.activations == {0: "AA", 1: "AQ"}
    plain = json.dumps({"id": "a", "choices": [choice_of(0)]}).encode()
    assert whole_answer(plain, Handling(), None).raw == plain, "others stay as they are"


async def test_so_does_a_stream():
    async def source():
        for delta, more in (({"content": "hi"}, {}), ({}, {"finish_reason": "stop", "activations": "AA"})):
            choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
            yield b"data: " + json.dumps({"id": "a", "choices": [choice]}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    received = ReceivedAnswer()
    relay = StreamRelay(routed().request.call, received, None)
    sent = b"".join([piece async for piece in relay.pieces(source())])
    assert b'"hi"' in sent and b'"stop"' in sent
    assert b"activations" not in sent
    assert received.activations == {0: "AA"}
