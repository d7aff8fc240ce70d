import pytest

from backend.fetch.fetch import How
from backend.fetch.patience import Patience
from tests.fakes.model_places import Bucket, Hub, Place, Registry, running

AWS = (
    "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
    "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
)  # fmt: skip
QUICK = Patience(attempts=3, pause_s=0.0, stall_s=5.0, least=1)


@pytest.fixture
def how(tmp_path):
    """How to fetch, with other values where a test says so."""

    def make(**more):
        return How(**{"cache": tmp_path / "cache", "patience": QUICK, **more})

    return make


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "REGISTRY_AUTH_FILE", *AWS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def hub(monkeypatch):
    with running(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def cdn():
    with running(Place()) as place:
        yield place


@pytest.fixture
def registry():
    with running(Registry()) as place:
        yield place


@pytest.fixture
def bucket(monkeypatch):
    """An S3 server with the bucket ``models``, whose key callers have."""
    with running(Bucket()) as place:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", place.url)
        monkeypatch.setenv("AWS_REGION", "eu-west-3")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", place.secret)
        yield place
