"""What administrators change: one module a subject, each change recorded before it is committed.

`gateway.installation`, `gateway.admin`, `gateway.cli` and `gateway.server` may import it.
"""
