"""Commitments to the activations of generated tokens, and their comparison with a recomputation. Imported by the server
and by the challenge; imports neither torch nor the rest of the backend."""
