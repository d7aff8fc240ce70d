"""Functions above the limits of `tests.test_architecture`, with their measures: these may only shrink.

Kernels and migrations read best in one piece, and so do commands that hand many options on, a line for each (ADR 163).
The loop over a stream costs more divided.
"""

LONG_FUNCTIONS = {
    "backend/cli/serve.py serve": 127,
    "backend/kernels/attention/rotary_kv.py _rotary_kv": 88,
    "gateway/database/migrations/versions/r0008_fleet.py upgrade": 81,
    "backend/kernels/attention/paged_decode.py _paged_decode": 80,
    "backend/kernels/attention/paged_decode.py paged_decode": 80,
    "backend/cli/capacity_plan.py plan": 76,
    "gateway/database/migrations/versions/r0001_control_plane.py upgrade": 75,
    "backend/kernels/attention/paged_attention.py _paged_attention": 73,
    "gateway/database/migrations/versions/r0003_limits_and_ledger.py upgrade": 69,
    "backend/kernels/attention/online_softmax.py attend": 68,
}
"""Lines, where more than 60."""

COMPLEX = {
    "policy/redact/stream.py StreamFilter._advance": 25,
    "policy/redact/stream.py _next_word_end": 20,
    "backend/kernels/attention/paged_decode.py default_choice": 17,
}
"""Cyclomatic complexity, where above 15."""
