"""The control database: connections, migrations, tables, the epoch, leases.

`gateway.store`, `gateway.limits` and everything above them may import it.
"""
