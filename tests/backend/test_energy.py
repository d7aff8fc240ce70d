"""The energy of a request, as its answer tells it."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend.process.gpu_meter import GpuMeter, Reading
from tests.backend.scripted import Scripted, request


async def test_an_answer_says_what_it_took_whole_and_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: begun + 2.5, time=time.time)
    monkeypatch.setattr("backend.answer.generation.time", clock)
    meter = GpuMeter(lambda: Reading(watts=500.0), lambda: 1, lambda: begun)
    meter.sample()  # and then never again: 500 W from here on
    backend = Scripted(tmp_path, "plain", meter)
    backend.engine.says("yes")
    backend.engine.started = begun + 0.5  # half a second after the sample, as if it had waited
    whole = (await backend.http.post("/v1/chat/completions", json=request())).json()["usage"]
    streamed = await backend.http.post(
        "/v1/chat/completions", json=request(stream=True, stream_options={"include_usage": True})
    )
    last = json.loads(streamed.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
    for usage in (whole, last):
        assert usage["energy_joules"] == 500 * 2.0


@pytest.mark.parametrize("reading", [None, Reading(), Reading(utilisation=1.0)], ids=["no card", "mute", "no watts"])
async def test_where_nothing_measures_the_draw_an_answer_does_not_say_zero(
    tmp_path: Path, reading: Reading | None
) -> None:
    meter = None if reading is None else GpuMeter(lambda: reading, lambda: 1)
    if meter is not None:
        meter.sample()
    backend = Scripted(tmp_path, "plain", meter)
    backend.engine.says("yes")
    backend.engine.started = time.monotonic()
    usage = (await backend.http.post("/v1/chat/completions", json=request())).json()["usage"]
    assert "energy_joules" not in usage
    counted = re.findall(r"request_energy_joules_count\S* (\S+)", (await backend.http.get("/metrics")).text)
    assert counted == ([] if meter is None else ["0.0"])
