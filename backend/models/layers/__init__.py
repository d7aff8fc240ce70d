"""Parts of a decoder layer in plain torch.

`backend.models.decoders` may import it.
"""
