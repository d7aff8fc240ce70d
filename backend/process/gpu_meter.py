"""Measurements of a GPU through NVML: memory, utilisation, power, and energy per request.

Sampled once a second in a thread of its own; where there is no card, no driver or no `pynvml` (nvidia-ml-py) there is
no meter, and its figures are absent. Source: NVIDIA Management Library (NVML) API reference.

Energy is shared simply: at any time each running sequence takes an equal part of what the card draws, so a request
takes the integral of watts / running sequences from when it first ran to its end, for each of its answers. The parts of
all requests add up to what the card took while any ran; idle draw is not attributed. Draw between samples is taken as
at the last one.
"""

import importlib
import logging
import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

EVERY_S = 1.0
KEPT = 3600
"""Samples of the past: a request that ran longer than these seconds is charged for these."""


class Reading(NamedTuple):
    """Bytes, a ratio from 0 to 1, watts; None for what the card does not report."""

    memory_used: float | None = None
    memory_total: float | None = None
    utilisation: float | None = None
    watts: float | None = None


NOTHING = Reading()
Probe = Callable[[], Reading]


class _Sample(NamedTuple):
    """`share`: joules that a sequence took which ran since the beginning; `rate`: watts that one takes from now on."""

    time: float
    share: float
    rate: float


class GpuMeter:
    """`running`: sequences in the batch now. Times are of `clock`, in seconds."""

    def __init__(self, probe: Probe, running: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._probe = probe
        self._running = running
        self._clock = clock
        self._samples: deque[_Sample] = deque([_Sample(clock(), 0.0, 0.0)], maxlen=KEPT)
        self._watts = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.reading = NOTHING
        self.joules = 0.0
        """That the card took since the meter began."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="gpu-meter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def sample(self) -> None:
        now, last = self._clock(), self._samples[-1]
        self.joules += self._watts * (now - last.time)
        share = last.share + last.rate * (now - last.time)
        self.reading = self._probe()
        self._watts = self.reading.watts or 0.0
        self._samples.append(_Sample(now, share, self._watts / max(1, self._running())))

    def taken(self, start: float, end: float) -> float:
        """Joules of one sequence that ran between these times."""
        samples = list(self._samples)
        return max(0.0, _share(samples, end) - _share(samples, start))

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.sample()


def _share(samples: list[_Sample], at: float) -> float:
    before = samples[max(0, bisect_right(samples, at, key=lambda sample: sample.time) - 1)]
    return before.share + before.rate * max(0.0, at - before.time)


def open_probe(device: str, cards: int = 1) -> Probe | None:
    """The probe of the card that torch calls `device`, as "cuda" or "cuda:1", or of so many from it on, whose memory
    and watts are added up; None where none is available."""
    if not device.startswith("cuda"):
        return None
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        log.info("no metrics of the card: nvidia-ml-py is not installed")
        return None
    try:
        nvml.nvmlInit()
        first = int(device.partition(":")[2] or 0)
        handles = [_handle(nvml, first + place) for place in range(cards)]
    except (nvml.NVMLError, ValueError, IndexError) as error:
        log.warning("no metrics of the card: %s", type(error).__name__)
        return None
    return lambda: _together([_read(nvml, handle) for handle in handles])


def _together(readings: list[Reading]) -> Reading:
    """Sums, and of use the mean; None for what a card does not report."""

    def total(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    used = total([reading.utilisation for reading in readings])
    return Reading(
        memory_used=total([reading.memory_used for reading in readings]),
        memory_total=total([reading.memory_total for reading in readings]),
        utilisation=None if used is None else used / len(readings),
        watts=total([reading.watts for reading in readings]),
    )


def _handle(nvml: Any, index: int) -> Any:
    """CUDA counts the cards that CUDA_VISIBLE_DEVICES lists, by number or UUID; NVML all of them, by their bus. Where a
    host has cards of several kinds, numbers agree with CUDA_DEVICE_ORDER=PCI_BUS_ID alone (CUDA programming guide)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = visible.split(",")[index].strip() if visible else str(index)
    if named.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(named)
    return nvml.nvmlDeviceGetHandleByIndex(int(named))


def _read(nvml: Any, handle: Any) -> Reading:
    def optional(read: Callable[[], float]) -> float | None:
        try:
            return read()
        except nvml.NVMLError:  # not every card reports every value, and a card that fell off the bus reports none
            return None

    return Reading(
        memory_used=optional(lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
        memory_total=optional(lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        utilisation=optional(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        watts=optional(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),  # mW
    )
