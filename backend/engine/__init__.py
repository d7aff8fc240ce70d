"""The inference engine: sequences in, tokens out, one step at a time.

engine.Engine        the loop body: schedule, run, account
scheduler            who runs in this step, with how many tokens
block_manager        pages of KV cache: block tables, reference counts, prefix cache
model_runner         one forward over a mixed batch, and sampling
attention            the paged cache itself, and attention over it
sampler, sampling    logits to a token
sequence, config     plain data

`backend.answer`, `backend.apart`, `backend.chat`, `backend.cli`, `backend.frontends`, `backend.process` and
`backend.server` may import it.
"""
