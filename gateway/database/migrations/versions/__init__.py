"""One module for each revision; the file name states its subject.

No module may import them; Alembic loads them.
"""
