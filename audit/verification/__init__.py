"""Offline verification of a log, its values and its attestations, and the regular self-test.

`audit.pack`, `audit.cli` and `gateway` may import it.
"""
