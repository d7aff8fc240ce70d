"""Functions above the limits of `tests.test_architecture`, with their measures: these may only shrink.

Kernels, migrations and assembly read best in one piece; the others are to be simplified.
"""

LONG_FUNCTIONS = {
    "backend/cli/serve.py serve": 114,
    "backend/server/serving.py serve": 95,
    "backend/chat/parameters.py job": 94,
    "backend/kernels/attention/rotary_kv.py _rotary_kv": 88,
    "gateway/database/migrations/versions/r0008_fleet.py upgrade": 81,
    "backend/kernels/attention/paged_decode.py _paged_decode": 80,
    "backend/kernels/attention/paged_decode.py paged_decode": 80,
    "gateway/database/migrations/versions/r0001_control_plane.py upgrade": 75,
    "backend/kernels/attention/paged_attention.py _paged_attention": 73,
    "gateway/database/migrations/versions/r0003_limits_and_ledger.py upgrade": 69,
    "backend/kernels/attention/online_softmax.py attend": 68,
    "backend/engine/engine.py Engine.add": 61,
}
"""Lines, where more than 60."""

COMPLEX = {
    "backend/chat/conversation.py ChatModel.turn": 29,
    "backend/tools/call.py CallScript.call": 25,
    "policy/redact/stream.py StreamFilter._advance": 25,
    "backend/chat/parameters.py job": 24,
    "backend/planner/roofline.py Roofline.workload": 22,
    "backend/process/engine_client.py EngineClient._handle": 21,
    "policy/redact/stream.py _next_word_end": 20,
    "backend/engine/engine.py Engine.add": 19,
    "backend/models/loader.py load_folder": 19,
    "backend/engine/core/speculation.py Speculation.draft": 18,
    "backend/chat/parameters.py _refuse_contradictions": 17,
    "backend/chat/unsupported.py refuse_unsupported": 17,
    "backend/engine/core/token_masks.py MaskedGrammars.allowed": 17,
    "backend/engine_config.py EngineConfig.__post_init__": 17,
    "backend/kernels/attention/paged_decode.py default_choice": 17,
    "backend/engine/engine.py Engine._allowed": 16,
    "backend/engine/warm_up.py _every_kind": 16,
    "backend/tools/request.py read_tools": 16,
}
"""Cyclomatic complexity, where above 15."""
