"""Responses that are kept under the policy's retention: read, gone on with, deleted, answered in the background.

`gateway.server` may import it, and nothing below.
"""
