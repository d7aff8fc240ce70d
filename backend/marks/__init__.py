"""Watermarks of generated tokens: the keyed random numbers, and the test for them. The engine's samplers
and the server may import it; it imports neither torch nor the rest of the backend."""
