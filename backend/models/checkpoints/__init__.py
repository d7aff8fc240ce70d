"""Checkpoints on disk: GGUF and safetensors, tokenizer, chat template, recommended settings.

`backend.models.loader` and everything outside `backend.models` may import it.
"""
