"""What is done with a find: the plan of a policy, placeholders, and how they are restored.

The modules of `policy.redact` may import it.
"""
