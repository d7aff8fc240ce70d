"""Watermarks of generated tokens: the keyed random numbers, and the test for them. Imported by the engine's samplers
and by the server; imports neither torch nor the rest of the backend."""
