"""An outside judge sends personal data through a whole gateway: nothing may reach the model, all must come back."""

import logging

import pytest

from bench.policy.redaction_leaks import judge
from tests.fakes.lab import lab
from tests.policy.redact.test_redactor import MAIL, POSITIONS


async def test_an_outside_judge_finds_no_leak_and_every_value_restored(tmp_path):
    status, printed, _ = await judge(1, tmp_path)
    assert status == 0 and "CLEAN" in printed, printed


MASKED = """
policy: masked
version: 1
residency: {process_in: EEA, store_in: EEA}
redaction: {input: {email: mask}, output: {email: mask}}
"""
BLOCKED = MASKED.replace("email: mask}, output", "email: block}, output")
BROKEN = {
    "model": {"model": MAIL, "messages": []},
    "role": {"model": "small", "messages": [{"role": {"x": MAIL}, "content": "hi"}]},
    "messages": {"model": "small", "messages": MAIL},
    "temperature": {"model": "small", "messages": [{"role": "user", "content": "hi"}], "temperature": MAIL},
    "part": {"model": "small", "messages": [{"role": "user", "content": [{"type": MAIL, "text": MAIL}]}]},
    "image": {"model": "small", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": MAIL}]}]},
    "subject": {"model": "small", "messages": [{"role": "user", "content": "hi"}], "user": f"{MAIL}\n"},
    "twice": {"model": "small", "messages": [{"role": "user", "content": "hi"}], MAIL: 1, f" {MAIL}": 2, "[EMAIL]": 3},
    "logprobs": {"model": "small", "messages": [{"role": "user", "content": MAIL}], "logprobs": True},
}  # fmt: skip


async def everything_said(made, answers):
    """What the gateway told anyone: answers, headers, the record, metrics."""
    metrics = await made.get("/metrics")
    headers = [str(answer.headers) for answer in answers]
    return "\n".join(
        [*(answer.body.decode() for answer in answers), *headers, str(made.events()), metrics.body.decode()]
    )


@pytest.mark.parametrize("policy", [MASKED, BLOCKED], ids=["mask", "block"])
async def test_personal_data_in_any_position_reaches_no_backend_record_log_metric_or_error(tmp_path, policy, caplog):
    caplog.set_level(logging.DEBUG)
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", policy)) as made:
        bodies = [{**body, "model": "small"} for body in POSITIONS.values()]
        answers = [await made.post(body) for body in bodies]
        assert {answer.status for answer in answers} <= {200, 400, 422}
        assert sum(answer.status == 200 for answer in answers) > 20 or policy is BLOCKED
        assert "alice" not in made.backends["acme-1"].received
        assert "alice" not in await everything_said(made, answers)
    assert "alice" not in caplog.text


@pytest.mark.parametrize("name", BROKEN)
async def test_no_error_of_ours_repeats_what_was_sent(tmp_path, caplog, name):
    caplog.set_level(logging.DEBUG)
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", MASKED)) as made:
        answer = await made.post(BROKEN[name])
        assert answer.status >= 400
        assert "alice" not in await everything_said(made, [answer])
        assert made.backends["acme-1"].bodies == []
    assert "alice" not in caplog.text


async def test_a_path_or_a_key_that_holds_personal_data_is_not_repeated(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with lab(tmp_path) as made:
        answers = [
            await made.get(f"/v1/{MAIL}"),
            await made.get(f"/v1/models/{MAIL}"),
            await made.get(f"/admin/v1/{MAIL}"),
        ]
        assert "alice" not in await everything_said(made, answers)
    assert "alice" not in caplog.text
