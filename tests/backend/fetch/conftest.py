import pytest

from backend.fetch.fetch import How
from backend.fetch.patience import Patience
from tests.fakes.model_places import Hub, Place, Registry, running

QUICK = Patience(attempts=3, pause_s=0.0, stall_s=5.0, least=1)


@pytest.fixture
def how(tmp_path):
    """How to fetch, with other values where a test says so."""

    def make(**more):
        return How(**{"cache": tmp_path / "cache", "patience": QUICK, **more})

    return make


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "REGISTRY_AUTH_FILE", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
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
