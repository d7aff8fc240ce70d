"""What a gateway knows in memory: keys, policies, backends, stops.

`gateway.request` and `gateway.server` may import it.
"""
