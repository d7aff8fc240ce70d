from pathlib import Path

import pytest

from gateway.installation.installation import Installation, InstallationError
from regions.errors import CatalogueError, IdentityError
from regions.identity.identity import GatewayIdentity


def test_a_folder_belongs_to_one_cell(data):
    assert Installation.create(data, "demo").cell == "demo"
    assert Installation.create(data).cell == "demo"
    assert Installation.open(data).cell == "demo"
    with pytest.raises(InstallationError, match="belongs to cell 'demo', not 'other'"):
        Installation.create(data, "other")


def test_a_folder_without_a_cell_is_no_installation(data):
    with pytest.raises(InstallationError, match="holds no installation"):
        Installation.open(data)
    assert not data.exists()


@pytest.mark.parametrize("name", ["", "Demo", "a b", "../x"])
def test_a_cell_has_a_name_of_the_grammar(data, name):
    with pytest.raises(IdentityError):
        Installation.create(data, name)
    assert not data.exists()


def test_a_damaged_cell_file_is_refused(data):
    installation = Installation.create(data, "demo")
    (data / "cell").write_text("not a name\n")
    with pytest.raises(IdentityError):
        Installation.open(installation.data)


def test_its_own_catalogue_goes_before_the_one_that_comes_along(data):
    installation = Installation.create(data, "demo")
    assert installation.catalogue().version == "2026-11-27 on 2026-11-30"
    (data / "catalogue.yaml").write_text("version: '2027-01-01'\noperators: []\nregions: []\n")
    assert installation.catalogue().version == "2027-01-01"
    (data / "catalogue.yaml").write_text("nonsense")
    with pytest.raises(CatalogueError):
        installation.catalogue()


def test_its_parts_open_and_belong_together(data):
    installation = Installation.create(data, "demo")
    database = installation.database()
    events = []
    control = installation.control(database, actor="cli", on_event=events.append)
    control.create_tenant("acme")
    assert [record.id for record in installation.inventory(database).tenants()] == ["acme"]
    assert events[0].cell == "demo"
    installation.authority().issue(GatewayIdentity("demo", "acme"), data / "gateway")
    database.close()


def test_the_key_that_backends_check_calls_by_is_named_for_processes_elsewhere(tmp_path, monkeypatch):
    """A backend runs in a folder of its own, so a path from here would lead it nowhere."""
    monkeypatch.chdir(tmp_path)
    key = Installation.create(Path("data"), "eu-1").request_key()
    assert key.is_absolute() and b"PUBLIC KEY" in key.read_bytes()
