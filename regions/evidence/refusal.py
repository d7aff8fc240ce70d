"""Why evidence does not hold."""

from regions.errors import RegionsError


class EvidenceRefused(RegionsError):
    """Evidence of a backend that does not hold. The message names what is wrong with it, for people and the record."""
