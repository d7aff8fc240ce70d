"""Of decisions and of redaction, beside its peers."""
