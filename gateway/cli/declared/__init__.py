"""Tenants and what is theirs as YAML in a folder: read, compared with an installation, and put in force.

Only `gateway.cli.apply` may import it.
"""
