"""Prometheus metrics of a backend: all names in one place, never content.

Server metrics follow OpenTelemetry's GenAI semantic conventions, with dots as underscores; what they have no name for
starts with ``domicile_backend_``.
"""

from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backend.engine.core.progress import Stats
from backend.process.gpu_meter import GpuMeter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
JOULES = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4)

GAUGES = {  # field of Stats -> (name, help)
    "running": ("domicile_backend_sequences_running", "Sequences in the running batch."),
    "waiting": ("domicile_backend_sequences_waiting", "Sequences queued for the engine."),
    "used_blocks": ("domicile_backend_kv_blocks_used", "KV cache blocks that sequences hold."),
    "total_blocks": ("domicile_backend_kv_blocks", "KV cache blocks there are."),
    "host_used_blocks": ("domicile_backend_host_cache_blocks_used", "Prefix blocks that the host's memory holds."),
    "host_blocks": ("domicile_backend_host_cache_blocks", "Blocks that the host's memory has room for."),
}
COUNTERS = {
    "preemptions": ("domicile_backend_preemptions", "Sequences preempted for want of KV blocks."),
    "prefix_queries": ("domicile_backend_prefix_query_tokens", "Prompt tokens looked up in the prefix cache."),
    "prefix_hits": ("domicile_backend_prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
    "host_hits": ("domicile_backend_host_cache_hit_tokens", "Prompt tokens that were copied back from the host."),
    "host_bytes_stored": ("domicile_backend_host_cache_stored_bytes", "Copied to the host's memory, by one rank."),
    "host_bytes_loaded": ("domicile_backend_host_cache_loaded_bytes", "Copied back from it, by one rank."),
    "swaps": ("domicile_backend_preemptions_swapped", "Preemptions whose blocks the host's memory kept."),
    "steps": ("domicile_backend_steps", "Steps of the engine loop."),
    "draft_tokens": ("domicile_backend_draft_tokens", "Tokens guessed by speculative decoding."),
    "draft_tokens_accepted": ("domicile_backend_draft_tokens_accepted", "Guessed tokens that the model confirmed."),
}
DRAFT_PLACES = (
    ("domicile_backend_draft_position_tokens", "Guessed tokens, by their place among the guesses of a step."),
    ("domicile_backend_draft_position_tokens_accepted", "The same of those that the model confirmed."),
)
GPU_METRICS = {  # field of Reading -> (name, help)
    "memory_used": ("domicile_backend_gpu_memory_used_bytes", "Memory of the card in use, by whomever."),
    "memory_total": ("domicile_backend_gpu_memory_bytes", "Memory of the card."),
    "utilisation": ("domicile_backend_gpu_utilisation_ratio", "Share of time in which a kernel ran, by NVML."),
    "watts": ("domicile_backend_gpu_power_watts", "What the card draws."),
}


class AnsweredRequest(msgspec.Struct, frozen=True, array_like=True):
    """What metrics count of a request that an engine was asked for. Times are seconds of the host's monotonic clock;
    started: when it first ran, first: its first token, None where there was none. choices: how many answers."""

    outcome: str
    arrived: float
    ended: float
    input_tokens: int
    output_tokens: int
    choices: int
    started: float | None = None
    first: float | None = None


class Metrics:
    """One registry a server. `stats` gives the engine's latest figures, None while there is no engine; `meter` watches
    its card, if it has one that can be watched."""

    def __init__(
        self,
        model: str,
        stats: Callable[[], Stats | None],
        alive: Callable[[], bool],
        asleep: Callable[[], bool] = lambda: False,
        meter: GpuMeter | None = None,
    ) -> None:
        self._registry = CollectorRegistry()
        labels = ["gen_ai_request_model"]

        def histogram(name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=self._registry).labels(model)

        self.time_to_first_token = histogram(
            "gen_ai_server_time_to_first_token_seconds", "From a request's arrival to its first token."
        )
        self.time_per_output_token = histogram(
            "gen_ai_server_time_per_output_token_seconds", "Mean time between the tokens of a request after its first."
        )
        self.request_duration = histogram(
            "gen_ai_server_request_duration_seconds", "From a request's arrival to the end of its answer."
        )
        self._queue_time = histogram(
            "domicile_backend_queue_time_seconds", "From a request's arrival to when it first ran."
        )
        self.meter = meter
        if meter is not None:
            self._energy = histogram(
                "domicile_backend_request_energy_joules",
                "What the card drew while a request ran, in equal parts for each sequence that ran.",
                JOULES,
            )
        self._tokens = Counter(
            "domicile_backend_tokens",
            "Tokens read and written.",
            [*labels, "gen_ai_token_type"],
            registry=self._registry,
        )
        self.input_tokens = self._tokens.labels(model, "input")
        self.output_tokens = self._tokens.labels(model, "output")
        self._requests = Counter(
            "domicile_backend_requests", "Requests by outcome.", [*labels, "outcome"], registry=self._registry
        )
        self._transfers = _Transfers(self._registry, labels)
        self._model = model
        self._registry.register(_EngineCollector(stats, alive, asleep))
        if meter is not None:
            self._registry.register(_GpuCollector(meter))

    def count_request(self, outcome: str) -> None:
        """`outcome`: completed, aborted, refused or failed."""
        self._requests.labels(self._model, outcome).inc()

    def count_answer(self, answer: AnsweredRequest) -> None:
        self.count_request(answer.outcome)
        self.request_duration.observe(answer.ended - answer.arrived)
        self.input_tokens.inc(answer.input_tokens)
        self.output_tokens.inc(answer.output_tokens)
        if answer.started is not None:
            self.count_run(answer.arrived, answer.started, answer.ended, answer.choices)
        if answer.first is not None:
            self.time_to_first_token.observe(answer.first - answer.arrived)
            per_choice = answer.output_tokens / answer.choices
            if per_choice > 1:
                self.time_per_output_token.observe((answer.ended - answer.first) / (per_choice - 1))

    def count_transfer(self, direction: str, outcome: str, size: int, seconds: float, way: str) -> None:
        """Count a transfer of a prompt's KV blocks. `direction`: sent or received. `outcome`: completed, refused or
        failed. `size`: bytes. `way`: tcp, or memory that both backends share."""
        self._transfers.count.labels(self._model, direction, outcome, way).inc()
        self._transfers.bytes.labels(self._model, direction, way).inc(size)
        self._transfers.seconds.labels(self._model, direction, way).observe(seconds)

    def count_run(self, arrived: float, started: float, ended: float, sequences: int) -> None:
        """Count a request that ran, with so many answers; times in seconds of the monotonic clock."""
        self._queue_time.observe(max(0.0, started - arrived))
        if (joules := self.energy(started, ended, sequences)) is not None:
            self._energy.observe(joules)

    def energy(self, started: float, ended: float, sequences: int) -> float | None:
        """Joules that so many sequences took between these times; None where nothing measures the card's draw."""
        if self.meter is None or self.meter.reading.watts is None:
            return None
        return sequences * self.meter.taken(started, ended)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _Transfers:
    """Metrics of transfers of KV blocks between backends."""

    def __init__(self, registry: CollectorRegistry, labels: list[str]) -> None:
        self.count = Counter(
            "domicile_backend_kv_transfers",
            "Prompts whose KV blocks were sent to another backend, or received from one.",
            [*labels, "direction", "outcome", "way"],
            registry=registry,
        )
        self.bytes = Counter(
            "domicile_backend_kv_transfer_bytes",
            "Keys and values sent to another backend, or received from one.",
            [*labels, "direction", "way"],
            registry=registry,
        )
        self.seconds = Histogram(
            "domicile_backend_kv_transfer_seconds",
            "From the connection to the last block of a prompt, the time that computes it included.",
            [*labels, "direction", "way"],
            buckets=SECONDS,
            registry=registry,
        )


class _EngineCollector(Collector):
    def __init__(
        self, stats: Callable[[], Stats | None], alive: Callable[[], bool], asleep: Callable[[], bool]
    ) -> None:
        self._stats = stats
        self._alive = alive
        self._asleep = asleep

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "domicile_backend_engine_up", "1 while the engine process runs.", value=float(self._alive())
        )
        yield GaugeMetricFamily(
            "domicile_backend_asleep", "1 while its memory is given back.", value=float(self._asleep())
        )
        stats = self._stats()
        if stats is None:
            return
        for field, (name, text) in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=getattr(stats, field))
        for field, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(stats, field))
        yield from _expert_metrics(stats.expert_pairs)
        yield from _draft_metrics(stats.draft_places)


def _expert_metrics(pairs: list[int]) -> Iterator[Metric]:
    """pairs: by rank; none where no rank holds experts as wholes."""
    if not pairs:
        return
    by_rank = CounterMetricFamily(
        "domicile_backend_expert_pairs", "Pairs of tokens and experts, by the rank that computed them.", labels=["rank"]
    )
    for rank, count in enumerate(pairs):
        by_rank.add_metric([str(rank)], count)
    yield by_rank
    mean = sum(pairs) / len(pairs)
    yield GaugeMetricFamily(
        "domicile_backend_expert_imbalance_ratio",
        "What the most loaded rank computed, over the mean of all: 1 is balanced.",
        value=max(pairs) / mean if mean else 1.0,
    )


def _draft_metrics(places: list[tuple[int, int]]) -> Iterator[Metric]:
    """places: guesses, and those found right, that were first, second … of their step; none before the first guess."""
    if not places:
        return
    for part, (name, text) in enumerate(DRAFT_PLACES):
        by_place = CounterMetricFamily(name, text, labels=["position"])
        for position, counts in enumerate(places, 1):
            by_place.add_metric([str(position)], counts[part])
        yield by_place


class _GpuCollector(Collector):
    def __init__(self, meter: GpuMeter) -> None:
        self.meter = meter

    def collect(self) -> Iterator[Metric]:
        for field, (name, text) in GPU_METRICS.items():
            value = getattr(self.meter.reading, field)
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily(
            "domicile_backend_gpu_energy_joules", "What the card took since the start.", value=self.meter.joules
        )
