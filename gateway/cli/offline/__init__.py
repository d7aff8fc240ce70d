"""Commands for auditors. They need no installation.

Only `gateway.cli.app` may import it.
"""
