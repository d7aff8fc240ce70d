"""Which of the allowed backends is asked first.

`gateway` may import it.
"""
