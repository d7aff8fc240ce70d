"""Items of kept responses, as they are listed, and as a body goes on with them."""

import pytest

from gateway.apis.responses.sealed_state import sealed
from gateway.errors import InvalidRequest, ObjectNotFound
from gateway.responses.response_items import input_items, is_response_id, referenced, response_of, spliced, turn

HEX = "0123456789abcdef" * 2
RESPONSE = f"resp_{HEX}"
SECRET, OTHER = bytes(32), bytes(31) + b"1"


def user(text):
    return {"role": "user", "content": text}


def test_a_text_and_plain_messages_are_listed_as_items_with_ids_of_their_response():
    (text,) = input_items(RESPONSE, "hi", None)
    assert text == {
        "type": "message", "role": "user", "id": f"msg_{HEX}i0000", "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
    }  # fmt: skip
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_own"}
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    answer, own, out = input_items(RESPONSE, [{"role": "assistant", "content": "a"}, call, result], None)
    assert answer["content"] == [{"type": "output_text", "text": "a", "annotations": []}]
    assert (own["id"], out["id"]) == ("fc_own", f"fco_{HEX}i0002")
    assert {response_of(item["id"]) for item in (text, answer, out)} == {RESPONSE}
    assert response_of("fc_own") is None


def test_thoughts_that_were_sealed_to_a_key_are_kept_open():
    item = {"type": "reasoning", "encrypted_content": sealed("hm", SECRET)}
    (made,) = input_items(RESPONSE, [item], SECRET)
    assert made["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert "encrypted_content" not in made
    for secret in (OTHER, None):
        assert input_items(RESPONSE, [item], secret)[0]["content"] == [{"type": "reasoning_text", "text": ""}]


def test_a_turn_is_what_was_asked_and_what_was_answered():
    output = [{"type": "reasoning", "id": "rs_1", "encrypted_content": "x", "content": []}, {"id": "msg_1"}]
    assert turn({"input": [{"id": "a"}]}, {"output": output}) == [
        {"id": "a"}, {"type": "reasoning", "id": "rs_1", "content": []}, {"id": "msg_1"},
    ]  # fmt: skip
    assert turn({"input": []}, {"output": None}) == []


@pytest.mark.parametrize("said", ["resp_", "resp_" + HEX + "0", "RESP_" + HEX, f" {RESPONSE}", "resp_" + "g" * 32, ""])
def test_what_is_no_id_of_a_response_is_not_looked_up(said):
    assert not is_response_id(said)
    assert is_response_id(RESPONSE)


def test_a_body_goes_on_with_items_before_its_own_and_in_place_of_names():
    body = {"model": "m", "previous_response_id": RESPONSE, "input": "and?", "temperature": 1}
    made, about = spliced(body, [user("one"), user("two")], {})
    assert made == {"model": "m", "input": [user("one"), user("two"), user("and?")], "temperature": 1}
    assert (about.response, about.items, about.was_text) == (RESPONSE, 2, True)
    name = {"type": "item_reference", "id": "msg_1"}
    body = {"input": [name, user("x"), name]}
    assert referenced(body) == ["msg_1", "msg_1"]
    made, about = spliced(body, [], {"msg_1": user("known")})
    assert made["input"] == [user("known"), user("x"), user("known")]
    assert (about.response, about.items, about.was_text) == (None, 0, False)


def test_what_is_not_kept_is_named_by_its_place():
    body = {"input": [user("x"), {"type": "item_reference", "id": "msg_1"}]}
    with pytest.raises(ObjectNotFound) as refused:
        spliced(body, [user("before")], {})
    assert refused.value.param == "input.1.id" and "store: false" in refused.value.message
    for wrong in (7, None, [], {}):
        with pytest.raises(InvalidRequest) as refused:
            spliced({"previous_response_id": RESPONSE, "input": wrong}, [], {})
        assert refused.value.param == "input"
