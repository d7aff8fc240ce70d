"""The reconciler's side of the control database: replicas, demand, time of use.

`gateway.server` and `gateway.cli` may import it.
"""
