"""Calls to backends: HTTP/1.1, mutual TLS and request tokens.

`gateway.request`, `gateway.evidence` and `gateway.server` may import it.
"""
