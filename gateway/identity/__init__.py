"""Who calls: API keys, people of an identity provider, workloads, and what each may do.

Every package of `gateway` above `gateway.configuration` may import it.
"""
