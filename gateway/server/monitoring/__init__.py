"""Metrics of a whole cell: backends and budgets.

Only `gateway.server` may import it.
"""
