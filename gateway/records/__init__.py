"""Immutable domain records: tenants, keys, deployments, usage, prices, and configuration bundles between cells.

Every package of `gateway` may import it. It imports `gateway.limits` for the kinds of limits.
"""
