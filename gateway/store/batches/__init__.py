"""Files and batches in the control database, sealed. `gateway.batches` and the commands about them may import it."""
