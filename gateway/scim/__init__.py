"""SCIM 2.0 (RFC 7643, RFC 7644): the identity provider provisions people and groups.

`gateway.server` may import it.
"""
