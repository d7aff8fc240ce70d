"""`domicile audit`: one module a group of commands.

`gateway.cli` imports `audit.cli.app`; nothing else imports it.
"""
