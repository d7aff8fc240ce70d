"""Postal addresses, with one grammar per country.

Only `policy.redact.detectors` may import it.
"""
