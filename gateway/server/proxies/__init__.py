"""Proxies in front of the gateway: whom they call for, by HTTP's header fields and by the PROXY protocol.

Only `gateway.server` may import it.
"""
