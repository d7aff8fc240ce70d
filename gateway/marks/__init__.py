"""Marks of answers: watermark detection, search by fingerprints, and signed manifests.

Imported by the admin API, the commands, the request pipeline and the gateway's assembly."""
