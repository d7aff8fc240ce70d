"""What laws and standards ask for, as dated data: duties, deadlines of incidents, the log of an AI system.

`audit.incidents` and everything above it may import it.
"""
