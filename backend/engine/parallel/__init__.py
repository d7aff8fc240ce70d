"""An engine whose model is divided among ranks: rank 0 schedules and draws, the others follow its steps.

`backend.engine.engine` and `backend.process` may import it.
"""
