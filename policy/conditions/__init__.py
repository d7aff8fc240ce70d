"""What a policy may ask of a request, one class a condition, and the registry of all of them.

`policy.document`, `policy.decision` and `policy.analysis` may import it.
"""
