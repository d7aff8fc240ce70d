"""Reads a server's queue, speed and cards from its Prometheus text at ``/metrics``: ours by our names, vLLM, SGLang and
TGI by theirs."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from regions.fleet.engine_figures import EngineFigures
from regions.fleet.fleet import EngineReport

METRICS_PATH = "/metrics"

_SAMPLE = re.compile(rb"^([a-z_:]+)(\{[^}\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_RUNNING = (
    b"domicile_backend_sequences_running",
    b"vllm:num_requests_running",
    b"sglang:num_running_reqs",
    b"tgi_batch_current_size",
)
_WAITING = (
    b"domicile_backend_sequences_waiting",
    b"vllm:num_requests_waiting",
    b"sglang:num_queue_reqs",
    b"tgi_queue_size",
)
_USED, _BLOCKS = b"domicile_backend_kv_blocks_used", b"domicile_backend_kv_blocks"
_SHARE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc", b"sglang:token_usage")
_WRITTEN = (b"domicile_backend_tokens_total", b"vllm:generation_tokens_total", b"sglang:generation_tokens_total")
_FIRST_TOKEN = (
    b"gen_ai_server_time_to_first_token_seconds",
    b"vllm:time_to_first_token_seconds",
    b"sglang:time_to_first_token_seconds",
)
_READ = b'gen_ai_token_type="input"'
_JOULES, _WATTS = b"domicile_backend_gpu_energy_joules_total", b"domicile_backend_gpu_power_watts"
_GPU = b"domicile_backend_gpu_utilisation_ratio"
_MEMORY_USED, _MEMORY = b"domicile_backend_gpu_memory_used_bytes", b"domicile_backend_gpu_memory_bytes"
MAX_NUMBER = 1e18

Samples = Mapping[bytes, Sequence[float]]


def parse_report(text: bytes) -> EngineReport | None:
    """The load in Prometheus text; None if it reports no queue. Several engines in one text are added up."""
    found = _samples(text)
    running, waiting = _first(found, _RUNNING), _first(found, _WAITING)
    if running is None or waiting is None:
        return None
    used, blocks, share = found.get(_USED), found.get(_BLOCKS), _first(found, _SHARE)
    use = sum(share) / len(share) if share else 0.0
    if used and blocks and sum(blocks) > 0:
        use = sum(used) / sum(blocks)
    numbers = (sum(running), sum(waiting), use)
    if any(not 0 <= number < 1e9 for number in numbers):  # also for what is not a number
        return None
    return EngineReport(int(numbers[0]), int(numbers[1]), min(use, 1.0))


def parse_figures(text: bytes) -> EngineFigures:
    """Speed and cards in Prometheus text, each None where it is absent or impossible."""
    found = _samples(text)
    use, used, memory = found.get(_GPU), found.get(_MEMORY_USED), _sum(found.get(_MEMORY))
    memory_used = _sum(used)
    return EngineFigures(
        written=_sum(_first(found, _WRITTEN)),
        first_tokens=_sum(_first(found, tuple(name + b"_count" for name in _FIRST_TOKEN))),
        first_token_s=_sum(_first(found, tuple(name + b"_sum" for name in _FIRST_TOKEN))),
        joules=_sum(found.get(_JOULES)),
        gpu_use=_share(None if use is None else sum(use) / len(use)),
        gpu_memory=_share(None if memory_used is None or not memory else memory_used / memory),
        watts=_sum(found.get(_WATTS)),
    )


def _samples(text: bytes) -> Samples:
    """The values of each name, without tokens that were read: these have a name with those that were written."""
    found: dict[bytes, list[float]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        if _READ in labels:
            continue
        with suppress(ValueError):
            number = float(value)  # first, so that what is no number leaves no name
            found.setdefault(name, []).append(number)
    return found


def _first(found: Samples, names: tuple[bytes, ...]) -> Sequence[float] | None:
    return next((found[name] for name in names if name in found), None)


def _sum(values: Sequence[float] | None) -> float | None:
    total = None if values is None else sum(values)
    return total if total is not None and 0 <= total < MAX_NUMBER else None


def _share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 1 else None
