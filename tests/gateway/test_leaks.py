"""An outside judge sends personal data through a whole gateway: nothing may reach the model, all must come back."""

from bench.redaction_leaks import judge


async def test_an_outside_judge_finds_no_leak_and_every_value_restored(tmp_path):
    status, printed, _ = await judge(1, tmp_path)
    assert status == 0 and "CLEAN" in printed, printed
