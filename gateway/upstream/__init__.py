"""Calls to backends: HTTP/1.1, mutual TLS and request tokens.

`gateway.request`, `gateway.comparisons` and `gateway.server` may import it.
"""
