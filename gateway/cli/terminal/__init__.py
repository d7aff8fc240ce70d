"""Options, error messages and printing that the commands share.

Only `gateway.cli` and `gateway.cli.admin` may import it.
"""
