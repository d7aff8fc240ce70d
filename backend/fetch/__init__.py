"""From the name of a model to its files on this host: a hub, an OCI registry or an S3 bucket.

Each file is checked against a digest, continued where it was cut, and kept once per host. `backend.cli` may import it;
it imports no torch.
"""
