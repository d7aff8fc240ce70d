"""Commands for auditors, which need no installation.

Only `gateway.cli.app` may import it.
"""
