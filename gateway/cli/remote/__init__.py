"""Administration of an installation elsewhere, over its admin API: the same operations as on a data folder.

Only `gateway.cli.terminal` and `gateway.cli.login` may import it.
"""
