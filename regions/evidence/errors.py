"""Error of the verification of evidence."""

from regions.errors import RegionsError


class EvidenceRefused(RegionsError):
    """Evidence of a backend is invalid. The message names the failed check, for people and the record."""
