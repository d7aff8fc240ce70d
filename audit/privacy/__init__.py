"""The rights of persons (GDPR 15 to 18) and the retention of records and values.

`audit.cli` and `gateway` may import it.
"""
