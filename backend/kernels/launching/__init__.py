"""What every launcher needs: argument checks, launch choices, programmatic dependent launch.

Every package of `backend.kernels` may import it.
"""
