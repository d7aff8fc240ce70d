"""Frozen values of the domain: tenants, keys, deployments, usage, prices, and bundles of cells.

Everything in `gateway` may import it; it imports `gateway.limits` for the kinds of limits.
"""
