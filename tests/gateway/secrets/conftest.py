"""A fake Vault that runs, and what it is reached by."""

import pytest

from gateway.configuration.settings import Vault
from gateway.secrets.vault import VaultClient
from tests.fakes.vault import TOKEN, running_vault


@pytest.fixture
def vault():
    with running_vault() as running:
        yield running


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o640)
    return path


@pytest.fixture
def connect(vault, token_file):
    """Makes clients, as configured by keywords."""
    made = []

    def client(**settings):
        asked = {"address": vault.url, "token_file": token_file, "timeout_s": 0.3, **settings}
        made.append(VaultClient(Vault(**asked), backoff_s=0.01))
        return made[-1]

    yield client
    for each in made:
        each.close()
