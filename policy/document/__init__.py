"""The policy document: its YAML, its schema, and the terms of its fields.

`policy.decision`, `policy.analysis` and everything outside `policy` may import it.
"""
