"""Joules by hand-made samples; NVML by a stand-in with its names and, where there is a card, by itself."""

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backend.process.gpu_meter import GpuMeter, Reading, open_probe
from backend.process.metrics import GPU_METRICS, Metrics


class Bench:
    """A card of so many `watts`, on which so many sequences are `running`; time goes by in steps of a second."""

    def __init__(self) -> None:
        self.now, self.watts, self.running = 100.0, 300.0, 0
        self.meter = GpuMeter(lambda: Reading(watts=self.watts), lambda: self.running, lambda: self.now)

    def goes(self, seconds: int, running: int, watts: float | None = 300.0) -> None:
        """Samples at the beginning, and after each second."""
        self.running = running
        self.watts = watts  # type: ignore[assignment]
        self.meter.sample()
        for _ in range(seconds):
            self.now += 1
            self.meter.sample()


def test_a_request_that_runs_alone_takes_what_the_card_draws() -> None:
    bench = Bench()
    bench.goes(10, running=1)
    assert bench.meter.taken(100, 110) == pytest.approx(3000)
    assert bench.meter.taken(103.5, 104) == pytest.approx(150)  # also between samples
    assert bench.meter.taken(109, 112) == pytest.approx(900)  # and behind the last


def test_those_that_run_together_share_and_the_shares_add_up_to_the_whole() -> None:
    bench = Bench()
    bench.goes(4, running=1)
    bench.goes(4, running=3)
    bench.goes(2, running=2)
    first = bench.meter.taken(100, 110)
    second = bench.meter.taken(104, 110)
    third = bench.meter.taken(104, 108)
    assert (first, second, third) == tuple(pytest.approx(value) for value in (1900, 700, 400))
    assert first + second + third == pytest.approx(bench.meter.joules)


def test_what_an_idle_card_draws_is_nobodys_of_before_or_after() -> None:
    bench = Bench()
    bench.goes(5, running=0, watts=70)
    bench.goes(1, running=1)
    bench.goes(5, running=0, watts=70)
    assert bench.meter.taken(105, 106) == pytest.approx(300)
    assert bench.meter.joules == pytest.approx(1000)


def test_a_card_that_falls_silent_takes_nothing_and_time_does_not_run_backwards() -> None:
    bench = Bench()
    bench.goes(3, running=1)
    bench.goes(3, running=1, watts=None)
    assert bench.meter.taken(100, 106) == pytest.approx(900)
    assert bench.meter.taken(106, 100) == bench.meter.taken(50, 60) == 0


class NvmlError(Exception):
    pass


def nvml(**changes: Any) -> Any:
    def absent(handle: object) -> Any:
        raise NvmlError

    asked = {
        "NVMLError": NvmlError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: f"card {index}",
        "nvmlDeviceGetHandleByUUID": lambda uuid: f"card {uuid}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=3 << 30, total=80 << 30),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=87),
        "nvmlDeviceGetPowerUsage": lambda handle: 412_500,
    }
    return SimpleNamespace(**asked | {name: absent if value is None else value for name, value in changes.items()})


def test_bytes_ratio_and_watts_are_told_as_the_card_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    probe = open_probe("cuda")
    assert probe is not None
    assert probe() == Reading(3 << 30, 80 << 30, 0.87, 412.5)


def test_cards_of_one_model_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    module = nvml(nvmlDeviceGetHandleByIndex=lambda index: asked.append(index) or index)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    probe = open_probe("cuda", 2)
    assert probe is not None
    assert probe() == Reading(6 << 30, 160 << 30, 0.87, 825.0)
    assert asked == [0, 1]


def test_what_a_card_does_not_tell_is_absent_and_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetPowerUsage=None, nvmlDeviceGetUtilizationRates=None))
    probe = open_probe("cuda:0")
    assert probe is not None
    meter = GpuMeter(probe, lambda: 1)
    meter.sample()
    text = Metrics("m", lambda: None, lambda: True, meter=meter).render().decode()
    assert "domicile_backend_gpu_memory_used_bytes 3.221225472e+09" in text
    assert "gpu_power_watts" not in text and "gpu_utilisation" not in text


@pytest.mark.parametrize(
    ("visible", "device", "card"),
    [
        (None, "cuda", "card 0"),
        (None, "cuda:1", "card 1"),
        ("2,3", "cuda:1", "card 3"),
        ("GPU-8f0c,GPU-17aa", "cuda:1", "card GPU-17aa"),
        ("MIG-5c", "cuda", "card MIG-5c"),
    ],
)
def test_the_card_is_the_one_that_cuda_calls_so(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, device: str, card: str
) -> None:
    asked: list[str] = []
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetPowerUsage=lambda handle: asked.append(handle) or 1))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    probe = open_probe(device)
    assert probe is not None
    probe()
    assert asked == [card]


@pytest.mark.parametrize(
    ("device", "visible", "module"),
    [
        ("cpu", "0", nvml()),
        ("cuda", "0", None),  # not installed
        ("cuda", "0", nvml(nvmlDeviceGetHandleByIndex=None)),
        ("cuda:3", "0,1", nvml()),
        ("cuda", "none", nvml()),
    ],
    ids=["a CPU", "no library", "no driver", "no such card", "no number"],
)
def test_without_a_card_there_is_no_meter_and_no_metric_of_it(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str, module: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert open_probe(device) is None
    text = Metrics("m", lambda: None, lambda: True).render().decode()
    assert "gpu" not in text and "joules" not in text


def test_a_request_is_counted_with_its_time_in_the_queue_and_its_joules() -> None:
    bench = Bench()
    bench.goes(10, running=2)
    metrics = Metrics("m", lambda: None, lambda: True, meter=bench.meter)
    metrics.count_run(arrived=101, started=103, ended=105, sequences=2)
    text = metrics.render().decode()
    assert 'domicile_backend_queue_time_seconds_sum{gen_ai_request_model="m"} 2.0' in text
    assert 'domicile_backend_request_energy_joules_sum{gen_ai_request_model="m"} 600.0' in text
    assert "domicile_backend_gpu_energy_joules_total 3000.0" in text
    assert GPU_METRICS["watts"][0] + " 300.0" in text


def test_the_thread_samples_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.process.gpu_meter.EVERY_S", 0.01)
    asked: list[int] = []
    meter = GpuMeter(lambda: asked.append(1) or Reading(watts=1), lambda: 1)
    meter.start()
    while len(asked) < 3:
        time.sleep(0.001)
    meter.stop()
    count = len(asked)
    assert meter.reading.watts == 1 and meter.joules > 0
    assert len(asked) == count


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_card_tells_all_four() -> None:
    pytest.importorskip("pynvml")
    probe = open_probe("cuda")
    assert probe is not None
    reading = probe()
    assert None not in reading
    assert 0 < (reading.memory_used or 0) <= (reading.memory_total or 0)
    assert 20 < (reading.watts or 0) < 2000
