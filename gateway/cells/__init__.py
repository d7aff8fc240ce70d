"""Several cells: what one answers to another, and what it asks for.

`gateway.server` and `gateway.cli` may import it.
"""
