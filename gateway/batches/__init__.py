"""OpenAI's files and batches: what is kept for later, and the worker that sends each line through the pipeline.

`gateway.server` may import it, and nothing below.
"""
