"""A data folder and what belongs to it: keys, databases, backups, enrolment, weak settings.

`gateway.evidence_pack`, `gateway.admin`, `gateway.cli` and `gateway.server` may import it.
"""
