"""Checkpoints to runnable models: formats (GGUF, safetensors), tokenizer, chat template, decoder.

`config`, `checkpoint`, `gguf`, `safetensors`, `tokenizer`, `chat_template` and `demo` do not import torch: the HTTP
process uses them. `decoder` and `loader` do.

`backend.engine`, the packages above it, `backend.fetch`, `backend.planner` and `backend.tools` may import it.
"""
