"""Redaction: personal data and secrets found in text, and what is done to them, both ways and in streams."""

ENGINE_VERSION = "7"
"""Named in every record; raised when the same text and plan may give another result."""
