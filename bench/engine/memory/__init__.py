"""What fits into the memory of a KV cache. Imported by nothing."""
