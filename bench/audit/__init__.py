"""Of the record: appending, private values, evidence packs."""
