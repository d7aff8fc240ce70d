"""Certificates and what they say: the cell's authority, SPIFFE-style URIs, trust in other servers.

Every package of `regions`, and `gateway`, may import it.
"""
