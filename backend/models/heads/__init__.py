"""Heads that guess further tokens from a model's hidden states: EAGLE-3 and multi-token prediction.

`backend.engine` may import it.
"""
