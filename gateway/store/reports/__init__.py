"""What is read of the control database: lists of what there is, usage, cost, the state of policies.

`gateway.installation` and everything above it may import it.
"""
