"""How well commitments to activations tell models apart, and what they cost: `python -m bench.activations`
(docs/adr/0145)."""
