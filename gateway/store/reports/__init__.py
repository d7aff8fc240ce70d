"""Reports on the control database: inventories, usage, cost, the state of policies.

`gateway.installation` and everything above it may import it.
"""
