"""Incidents, their impact, requests of persons, and what the registers of the operator say of the parties.

`audit.registers` and everything above it may import it.
"""
