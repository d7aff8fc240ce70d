"""The worker of batches: each line passes the pipeline, and its result is kept once.

`gateway.batches.assembly` and `gateway.responses` may import it.
"""
