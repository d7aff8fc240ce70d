"""Commands on tenants, keys, policies, limits, deployments, people and usage.

Only `gateway.cli.app` may import it.
"""
