"""Files of projects: how content comes in, is sealed, kept, read and deleted. `gateway.batches` may import it."""
