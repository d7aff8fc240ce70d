"""Marks of answers: watermark detection, search by fingerprints, and signed manifests.

The admin API, the commands, the request pipeline and the gateway's assembly may import it."""
