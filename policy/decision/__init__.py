"""From documents and facts to a decision, and the decision in words.

`policy.analysis` and everything outside `policy` may import it.
"""
