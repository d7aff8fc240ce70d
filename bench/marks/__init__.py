"""How well watermarks are found, and what they cost: `python -m bench.marks` (docs/adr/0122)."""
