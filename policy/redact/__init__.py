"""Redaction: personal data and secrets found in text, and what is done to them, both ways and in streams."""
