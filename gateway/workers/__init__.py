"""Several processes of one gateway on one machine: who starts them, and what they have in common.

`gateway.server` and `gateway.cli` may import it.
"""
