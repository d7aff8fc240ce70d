"""Prefill and decode on backends of their own: the connection over which a prompt's KV blocks travel.

`backend.server` may import it.
"""
