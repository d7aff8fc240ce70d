"""Policies looked at before they are in force: their own tests, differences, simulation.

`policy.cli` and `gateway` may import it.
"""
