"""What a body may hold: counted before it is parsed, exactly, and whatever stands in its strings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BodyTooComplex, InvalidRequest
from gateway.openai import bounds as bounds_module
from gateway.openai.bounds import GROUP, MAX_FORM_DEPTH, MAX_MESSAGES, MAX_TOOLS, Bounds, check_shape, may_exceed_shape
from gateway.openai.checked_call import parse_call
from gateway.openai.endpoints import CHAT, COMPLETIONS
from tests.fakes.lab import chat

TEXTS = st.text(alphabet='ab{}[],:"\\\n', max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def digits_of(value):
    """Digits of each number in `value`."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [number for each in inner for number in digits_of(each)]
    return [sum(map(str.isdigit, str(value)))] if isinstance(value, int) and not isinstance(value, bool) else []


def names_of(value):
    """How many members `value` and all objects in it have."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return (len(value) if isinstance(value, dict) else 0) + sum(map(names_of, inner))


def counted(value):
    """Containers, strings and commas of `value` as JSON."""
    if isinstance(value, str):
        return 0, 1, 0
    if not isinstance(value, dict | list):
        return 0, 0, 0
    inner = list(value) if isinstance(value, list) else [each for pair in value.items() for each in pair]
    sums = [sum(each) for each in zip(*(counted(each) for each in inner), strict=True)] or [0, 0, 0]
    return sums[0] + 1, sums[1], sums[2] + max(0, len(value) - 1)


@given(VALUES, st.booleans())
def test_the_count_is_exact_whatever_the_strings_hold(value, plain):
    raw = b" " * 40 + json.dumps(value, ensure_ascii=plain).encode()
    containers, strings, commas = counted(value)
    Bounds(containers, strings, commas).check(raw)
    for bounds in (
        (containers - 1, strings, commas),
        (containers, strings - 1, commas),
        (containers, strings, commas - 1),
    ):
        if min(bounds) >= 0:
            with pytest.raises(BodyTooComplex):
                Bounds(*bounds).check(raw)


@given(VALUES, st.booleans(), st.integers(1, 40))
def test_the_count_does_not_depend_on_where_the_slices_end(value, plain, size):
    raw = b" " * 10 + json.dumps(value, ensure_ascii=plain).encode()
    containers, strings, commas = counted(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bounds_module, "SLICE", size)
        Bounds(containers, strings, commas).check(raw)
        if strings:
            with pytest.raises(BodyTooComplex):
                Bounds(containers, strings - 1, commas).check(raw + b" " * containers)


@given(VALUES | st.lists(st.integers(-(10**70), 10**70), max_size=4), st.booleans(), st.integers(1, 45) | st.just(1000))
def test_names_and_digits_are_counted_exactly_wherever_the_slices_end(value, plain, size):
    raw = b" " * 40 + json.dumps(value, ensure_ascii=plain).encode()
    most = {"containers": counted(value)[0], "names": names_of(value)}
    most |= {"digits": sum(digits_of(value)), "groups": sum(each // GROUP for each in digits_of(value))}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bounds_module, "SLICE", size)
        Bounds(**most).check(raw)
        for bound in most:
            if most[bound]:
                with pytest.raises(BodyTooComplex):
                    Bounds(**most | {bound: most[bound] - 1}).check(raw)


def test_what_lies_behind_the_first_slice_with_too_much_costs_nothing():
    raw = b"{}," * 2_000_000
    with pytest.raises(BodyTooComplex):
        steps = 0
        for _ in Bounds().scan(raw):
            steps += 1
    assert steps <= 2


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[' + b",".join([b'{"role":1}'] * 700_000) + b"]}",
        b'{"model":"m","messages":[' + b",".join([b'{"role":"user","content":"x"}'] * 200_000) + b"]}",
        b'{"model":"m","x":[' + b",".join([b"{}"] * 2_600_000) + b"]}",
        b'{"model":"m","x":[' + b",".join([b'""'] * 2_000_000) + b"]}",
        b'{"model":"m","x":[' + b",".join([b"1"] * 3_900_000) + b"]}",
        b'{"model":"m","x":[' + b",".join([b"[]"] * 20_000) + b'],"y":"\\',
        b"[" * 8_000_000,
        b'{"model":"m","x":{' + b",".join([b'"n":1'] * 50_000) + b"}}",
        b'{"model":"m","x":[' + b",".join([b"7" * 20] * 200_000) + b"]}",
        b'{"model":"m","x":[' + b",".join([b"7" * 4000] * 1900) + b"]}",
        b'{"model":"m","x":[' + b",".join([b"0.1234567890123456"] * 200_000) + b"]}",
        b'{"model":"m","x":"' + b"\\n" * 2_000_001 + b'"}',
    ],
)
def test_a_body_of_very_many_values_is_refused_by_its_count(body):
    with pytest.raises(BodyTooComplex, match="more than"):
        parse_call(CHAT, body)


def test_a_long_text_full_of_brackets_and_quotes_is_one_string():
    text = 'def f(x): return {"a": [1, 2]}\\ "\n' * 100_000
    assert parse_call(CHAT, json.dumps(chat(text)).encode()).body["messages"][0]["content"] == text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat("x", messages=[{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)), "messages"),
        (chat("x", tools=[{}] * (MAX_TOOLS + 1)), "tools"),
        (chat("x", logit_bias={str(n): "x" for n in range(2000)}), "logit_bias"),
        (chat("x", tools=[{"type": "function"}, {"p": [[]] * 5000}]), "tools.1"),
        (chat("x", response_format={"s": [{}] * 5000}), "response_format"),
        (chat("x", guided_json={"s": json.loads("[" * MAX_FORM_DEPTH + "]" * MAX_FORM_DEPTH)}), "guided_json"),
    ],
)
def test_messages_tools_and_schemas_are_bounded_by_name(body, param):
    with pytest.raises(BodyTooComplex) as refused:
        parse_call(CHAT, json.dumps(body).encode())
    assert (refused.value.param, refused.value.code, refused.value.http_status) == (param, "body_too_complex", 400)


def test_a_body_at_the_bounds_passes():
    body = chat("x", messages=[{"role": "user", "content": "x"}] * MAX_MESSAGES, tools=[{}] * MAX_TOOLS)
    assert len(parse_call(CHAT, json.dumps(body).encode()).body["messages"]) == MAX_MESSAGES
    ids = {"model": "m", "prompt": [1] * 299_999}
    assert len(parse_call(COMPLETIONS, json.dumps(ids).encode()).body["prompt"]) == 299_999
    ids["prompt"] = [1_234_567] * 299_999
    assert len(parse_call(COMPLETIONS, json.dumps(ids).encode()).body["prompt"]) == 299_999
    assert parse_call(CHAT, json.dumps(chat("ж" * 1_300_000)).encode()).body["messages"][0]["content"][-1] == "ж"
    long = chat("1234567890" * 500_000, x={f"n{n}": 2**63 for n in range(900)})
    assert len(parse_call(CHAT, json.dumps(long).encode()).body["x"]) == 900


@pytest.mark.parametrize("field", ["prompt", "messages", "stop", "guided_choice"])
def test_of_many_errors_the_first_is_told(field):
    endpoint = CHAT if field == "messages" else COMPLETIONS
    body = {"model": "m", "messages": [], "prompt": "x", field: [{"role": 1}] * 4000}
    with pytest.raises(InvalidRequest) as refused:
        parse_call(endpoint, json.dumps(body).encode())
    assert refused.value.http_status == 400 and refused.value.param.startswith(field)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b",".join([b"1"] * (MAX_MESSAGES + 1)) + b"]}",
        b'{"tools":[' + b",".join([b"1"] * (MAX_TOOLS + 1)) + b"]}",
        b'{"response_format":' + b"[" * (MAX_FORM_DEPTH + 1) + b"]" * (MAX_FORM_DEPTH + 1) + b"}",
    ],
)
def test_no_body_that_is_refused_for_its_shape_is_small_enough_to_pass_unseen(body):
    with pytest.raises(BodyTooComplex):
        check_shape(json.loads(body))
    assert may_exceed_shape(body)
