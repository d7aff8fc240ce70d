"""The engine without a device: sequences, scheduler, block manager, speculation, grammars.

Everything in `backend.engine`, `backend.planner` and `backend.process` may import it.
"""
