"""Pure decisions: who may process a prompt, where, what is masked, what is kept. No I/O, no clock."""
