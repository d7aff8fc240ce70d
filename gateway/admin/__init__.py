"""The admin API, ``/admin/v1``: what an operator or a tenant's own people may read and change.

`gateway.console` and `gateway.server` may import it.
"""
