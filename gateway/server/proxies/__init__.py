"""Client addresses behind proxies: from HTTP header fields and from the PROXY protocol.

Only `gateway.server` may import it.
"""
