"""Administration of a remote installation through its admin API, with the same operations as on a data folder.

Only `gateway.cli.terminal` and `gateway.cli.login` may import it.
"""
