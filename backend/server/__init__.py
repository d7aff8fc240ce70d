"""The HTTP server of a backend: routes, life cycle, mutual TLS, request tokens.

`backend.cli` may import it.
"""
