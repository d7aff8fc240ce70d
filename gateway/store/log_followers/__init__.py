"""Writers that follow the record: what calls cost, and messages to webhooks, each from the last record it has read.

`gateway.server` and `gateway.webhooks` may import it.
"""
