"""Speculative decoding with a draft model: its runner, its KV cache and its start beside the target model.

`backend.engine.engine` may import it.
"""
