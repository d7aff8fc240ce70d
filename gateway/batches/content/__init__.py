"""Files of projects: how content comes in, is sealed, kept, read and deleted. All of `gateway.batches` may import it."""
