"""What the gateways of one cell know: tenants, projects, keys, policies, backends, read and changed in transactions.

Every package of `gateway` above it may import it.
"""
