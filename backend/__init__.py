"""What runs on a GPU host: the engine, its models and kernels, and the server in front of it.

`gateway` and `regions` may import `backend.wire`, and the command line `backend.cli`.
"""
