"""Commitments to the activations of generated tokens, and their comparison with a recomputation. The server
and the challenge may import it; it imports neither torch nor the rest of the backend."""
