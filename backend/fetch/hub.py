"""Models of a hub, as huggingface_hub lists them: huggingface.co, or the mirror that HF_ENDPOINT names.

Its token is HF_TOKEN's, or that of the file of HF_TOKEN_PATH. Files are fetched by `backend.fetch.download`, because
huggingface_hub's own download holds no digest against what arrived, and asks other hosts (xet) for chunks.
"""

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2

from backend.errors import FetchError
from backend.fetch.model_references import HubName
from backend.fetch.source import Listing, RemoteFile, chosen
from backend.fetch.transport import Bearer, Transport, host_of, require_tls, tls_context

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

ENDPOINT = "https://huggingface.co"
LISTING_S = 60.0
_library = threading.Lock()
"""Its client is one of the process."""


def listing(name: HubName, transport: Transport) -> Listing:
    """What the revision has now. Raises FetchError."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ModuleNotFoundError:
        raise FetchError(f"{name} is of a hub; install what reads it: pip install 'domicile[hub]'") from None
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT
    require_tls(endpoint)
    token = huggingface_hub.get_token()
    host = host_of(endpoint)
    try:
        with _library:
            huggingface_hub.set_client_factory(_client)
            info = huggingface_hub.HfApi(endpoint=endpoint, token=token or False).model_info(
                name.repository, revision=name.revision, files_metadata=True, timeout=LISTING_S
            )
            huggingface_hub.close_session()
    except (errors.GatedRepoError, errors.RepositoryNotFoundError):
        raise FetchError(
            f"{host} shows no model {name.repository}; check the name, accept its terms there if it has some, and set"
            " HF_TOKEN if it is not public"
        ) from None
    except errors.RevisionNotFoundError:
        raise FetchError(
            f"{name.repository} has no revision {name.revision}; name a branch, a tag or a commit"
        ) from None
    except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, httpx2.HTTPError) as error:
        raise FetchError(
            f"{host} does not list {name.repository} ({type(error).__name__}); try again, or use --offline if it was"
            " fetched before"
        ) from None
    commit = info.sha or ""
    if not commit.isalnum() or (name.is_fixed and commit != name.revision):
        raise FetchError(f"{host} answers with another revision than {name.revision}; name the commit that you want")
    source = str(replace(name, revision=commit))
    files = (_file(name.repository, commit, endpoint, each) for each in info.siblings or ())
    return Listing(source, chosen(source, files, name.file), Bearer(token))


def _file(repository: str, commit: str, endpoint: str, said: "RepoSibling") -> RemoteFile:
    from huggingface_hub import hf_hub_url

    return RemoteFile(
        name=said.rfilename,
        size=-1 if said.size is None else said.size,
        url=hf_hub_url(repository, said.rfilename, revision=commit, endpoint=endpoint),
        sha256=said.lfs.sha256 if said.lfs else None,
        git_sha1=None if said.lfs else said.blob_id,
    )


def _client() -> httpx2.Client:
    """HTTP client of huggingface_hub, for the listing: no redirect leaves TLS."""
    return httpx2.Client(
        verify=tls_context(),
        follow_redirects=True,
        timeout=LISTING_S,
        event_hooks={"request": [lambda request: require_tls(str(request.url))]},
    )
