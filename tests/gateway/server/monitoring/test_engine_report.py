import pytest

from backend.process.gpu_meter import Reading
from backend.process.metrics import Metrics
from gateway.server.monitoring.engine_report import parse_figures, parse_report
from regions.fleet.engine_figures import EngineFigures
from regions.fleet.fleet import EngineReport

OURS = b"""# HELP domicile_backend_sequences_running Sequences in the running batch.
domicile_backend_sequences_running{gen_ai_request_model="m"} 3.0
domicile_backend_sequences_waiting{gen_ai_request_model="m"} 2.0
domicile_backend_kv_blocks_used{gen_ai_request_model="m"} 25.0
domicile_backend_kv_blocks{gen_ai_request_model="m"} 100.0
"""
VLLM = b"""vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.7
"""


def test_our_engine_and_vllm_tell_of_their_queue_and_cache():
    assert parse_report(OURS) == EngineReport(3, 2, 0.25)
    report = parse_report(VLLM)
    assert (report.running, report.waiting, round(report.kv_use, 2)) == (3, 4, 0.6)


def test_sglang_and_tgi_tell_by_names_of_their_own():
    sglang = b'sglang:num_running_reqs{m="x"} 2.0\nsglang:num_queue_reqs{m="x"} 1.0\nsglang:token_usage{m="x"} 0.4\n'
    assert parse_report(sglang) == EngineReport(2, 1, 0.4)
    assert parse_report(b"tgi_batch_current_size 3\ntgi_queue_size 5\n") == EngineReport(3, 5, 0.0)


@pytest.mark.parametrize(
    "text",
    [b"", b"<html>", b"vllm:num_requests_running 1", OURS.replace(b"3.0", b"-3"), OURS.replace(b"2.0", b"1e999"),
     OURS.replace(b"3.0", b"1.2.3"), b"\xff\xfe"],
)  # fmt: skip
def test_what_tells_of_no_queue_is_no_report(text):
    assert parse_report(text) is None


def test_without_a_word_on_the_cache_it_counts_as_empty():
    assert parse_report(VLLM.partition(b"vllm:kv")[0]) == EngineReport(3, 4, 0.0)


class Meter:
    """Of a card that draws 300 W."""

    reading = Reading(memory_used=20e9, memory_total=80e9, utilisation=0.5, watts=300.0)
    joules = 900.0


def test_figures_of_our_engine_are_read_from_what_it_really_prints():
    metrics = Metrics("m", stats=lambda: None, alive=lambda: True, meter=Meter())
    metrics.input_tokens.inc(1000)
    metrics.output_tokens.inc(40)
    metrics.time_to_first_token.observe(0.25)
    metrics.time_to_first_token.observe(0.75)
    assert parse_figures(metrics.render()) == EngineFigures(40, 2, 1.0, 900, 0.5, 0.25, 300)


def test_figures_of_vllm_are_added_up_over_its_engines():
    text = b"""vllm:generation_tokens_total{engine="0"} 30.0
vllm:generation_tokens_total{engine="1"} 12.0
vllm:time_to_first_token_seconds_sum{engine="0"} 2.0
vllm:time_to_first_token_seconds_count{engine="0"} 4.0
"""
    assert parse_figures(text) == EngineFigures(written=42, first_tokens=4, first_token_s=2)


@pytest.mark.parametrize("said", [b"NaN", b"-1", b"1e999", b"2.0"])
def test_a_share_that_cannot_be_is_not_told(said):
    assert parse_figures(b"domicile_backend_gpu_utilisation_ratio " + said + b"\n").gpu_use is None


@pytest.mark.parametrize("text", [b"", b"<html>", OURS, b"domicile_backend_gpu_memory_used_bytes 5\n"])
def test_what_tells_of_no_speed_has_no_figures(text):
    assert parse_figures(text) == EngineFigures()
