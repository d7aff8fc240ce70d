"""The kinds of places that models come from."""

from backend.fetch import hub, oci, s3
from backend.fetch.model_references import HubName, OciName, RemoteName
from backend.fetch.source import Listing
from backend.fetch.transport import Transport


def listing_of(name: RemoteName, transport: Transport) -> Listing:
    """Return what the place has under that name now. Raises FetchError."""
    if isinstance(name, HubName):
        return hub.listing(name, transport)
    if isinstance(name, OciName):
        return oci.listing(name, transport)
    return s3.listing(name, transport)
