"""Tenants declared as YAML files in a folder: reader, comparison with an installation, and changes to it.

Only `gateway.cli.apply` may import it.
"""
