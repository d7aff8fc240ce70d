"""Policies over time: compiled, studied before they are in force, activated, looked up by their hash.

`gateway.installation`, `gateway.comparisons`, `gateway.evidence_pack`, `gateway.admin`, `gateway.cli` and
`gateway.server` may import it.
"""
