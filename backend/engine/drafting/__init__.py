"""Drafters of speculative decoding: from the text itself, and a draft model with its runner, KV cache and start.

`backend.engine.engine` may import it.
"""
