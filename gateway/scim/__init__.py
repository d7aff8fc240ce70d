"""SCIM 2.0 (RFC 7643, RFC 7644): provisioning of users and groups by the identity provider.

`gateway.server` may import it.
"""
