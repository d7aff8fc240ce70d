"""Settings, where each comes from, and where data leaves the gateway to.

Everything in `gateway` but `gateway.records` may import it.
"""
