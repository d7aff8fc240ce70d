"""The path of a request. `gateway.request.pipeline` shows its ten steps; read it first.

`gateway.server` and `gateway.cli` may import it.
"""
