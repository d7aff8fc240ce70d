"""The worker of batches: each line through the pipeline, its result kept once. `gateway.batches.assembly` starts it."""
