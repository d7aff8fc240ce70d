"""What a gateway tells monitoring of more than itself: its backends, and budgets.

Only `gateway.server` may import it.
"""
