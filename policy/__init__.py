"""Pure decisions: who may process a prompt, where, what is masked, what is kept. No I/O, no clock.

`load_document` and `compile_policy` once a version, `decide` for each request, `redact.redactor.Redactor` for its text.

`regions` and `gateway` may import it.
"""
