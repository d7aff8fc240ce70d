"""The kinds of places that models come from."""

from backend.errors import FetchError
from backend.fetch import hub, oci
from backend.fetch.names import HubName, OciName, RemoteName
from backend.fetch.source import Listing
from backend.fetch.transport import Transport


def listing_of(name: RemoteName, transport: Transport) -> Listing:
    """What the place has under that name now. Raises FetchError."""
    if isinstance(name, HubName):
        return hub.listing(name, transport)
    if isinstance(name, OciName):
        return oci.listing(name, transport)
    raise FetchError("models of s3:// are not fetched yet; name another place")
