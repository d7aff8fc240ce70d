"""Webhooks: events of operation, sent to receivers that the configuration names.

`gateway.server` may import it.
"""
