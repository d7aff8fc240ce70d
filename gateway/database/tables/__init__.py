"""The rows of the control database, by subject.

Only `gateway.database` and `gateway.store` may import it.
"""
