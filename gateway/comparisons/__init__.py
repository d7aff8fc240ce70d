"""Calls on record compared with what comes out again: a replay of a kept call, a challenge of an answer's commitment.

`gateway.admin`, `gateway.server` and `gateway.cli` may import it.
"""
