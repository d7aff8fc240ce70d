"""The event types, the leaf that is made of one, canonical JSON, and the published formats (JSON Schema, OCSF).

Every package of `audit` may import it, and `gateway` for what it records.
"""
