"""Changes of the installation's own catalogue reach gateways that run."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner

from gateway.configuration.settings import load_settings
from gateway.directory.catalogue_follower import CatalogueFollower
from gateway.server.assembly import open_gateway
from gateway.server.serve import serving
from regions.catalogue.catalogue import Catalogue
from regions.cli import app
from regions.errors import CatalogueError
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import chat, lab
from tests.gateway.parts import World

OFFICE = ("create", "eu-office", "--country", "DE", "--operator", "acme-it", "--source", "register")
NEW = "version: '2'\nextends: domicile\noperators:\nregions:\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "catalogue.yaml"


async def looked(follower, times=2):
    taken = []
    for _ in range(times):
        await follower.step(taken.append)
    return [each.version.partition(" ")[0] for each in taken]


async def test_a_file_that_comes_changes_or_goes_is_taken_over_once(file):
    follower = CatalogueFollower(file)
    assert await looked(follower) == []
    file.write_text(NEW)
    assert await looked(follower, 4) == ["2"]
    file.write_text(NEW.replace("2", "3"))
    assert await looked(follower, 4) == ["3"]
    file.unlink()
    assert len(await looked(follower, 4)) == 1
    assert follower.catalogue.version == Catalogue.load().version


async def test_what_is_written_between_two_readings_is_waited_for(file):
    follower = CatalogueFollower(file)
    for version in "456":
        file.write_text(NEW.replace("2", version))
        assert await looked(follower, 1) == []
    assert await looked(follower, 1) == ["6"]


@pytest.mark.parametrize("bad", [b"nonsense", b"version: '3'\nregions: [", b"\xff\xfe", b""])
async def test_a_file_that_is_no_catalogue_leaves_the_facts_of_before_and_is_said_once(file, caplog, bad):
    file.write_text(NEW)
    follower = CatalogueFollower(file)
    file.write_bytes(bad)
    with caplog.at_level(logging.ERROR):
        assert await looked(follower, 4) == []
    assert len(caplog.records) == 1 and str(file) in caplog.text and "mend the file" in caplog.text
    assert follower.catalogue.version.startswith("2 ")
    file.write_text(NEW.replace("2", "3"))
    assert await looked(follower) == ["3"]


async def test_a_folder_in_its_place_is_no_reason_to_stop_looking(file):
    follower = CatalogueFollower(file)
    file.mkdir()
    assert await looked(follower) == []
    file.rmdir()
    file.write_text(NEW)
    assert await looked(follower) == ["2"]


def test_a_first_file_that_is_no_catalogue_is_refused(file):
    file.write_text("nonsense")
    with pytest.raises(CatalogueError):
        CatalogueFollower(file)


def test_the_registry_describes_backends_anew():
    world = World("acme/eu-office/acme-1", "globex/eu-fr-par/globex-1")
    (before,) = world.registry.facts("acme", "small")
    assert before.compute_country is None
    text = NEW.replace("operators:\nregions:\n", "operators:\n") + (
        "- {id: acme-it, entity: Acme, head_office: DE, ultimate_parent: Acme, parent_country: DE,"
        " valid_from: 2020-01-01, source: x}\nregions:\n"
        "- {id: eu-office, name: Office, compute_country: DE, storage_country: DE, operator: acme-it,"
        " valid_from: 2020-01-01, source: x}\n"
    )
    world.registry.use(Catalogue.parse(text))
    (after,) = world.registry.facts("acme", "small")
    assert (after.compute_country, after.operator_hq) == ("DE", "DE")
    assert world.registry.catalogue_version.startswith("2 on ")


async def test_gateways_that_run_take_up_a_region_its_change_and_its_end(tmp_path):
    def run(*words):
        done = CliRunner().invoke(app, [*words, "--data", str(tmp_path / "data")])
        assert done.exit_code == 0, done.output

    async with lab(tmp_path, backends={"acme/eu-office/acme-1": FakeBackend()}) as made, second(made) as other:

        async def said(base):
            headers = {"authorization": f"Bearer {made.key()}"}
            async with made.http.post(f"{base}/v1/chat/completions", json=chat("hi"), headers=headers) as answer:
                return answer.status, await answer.text()

        async def until_both(status, words):
            async with asyncio.timeout(60):
                for base in (made.base, other):
                    while (now := await said(base))[0] != status or words not in now[1]:
                        await asyncio.sleep(0.1)

        await until_both(403, "facts.missing")
        run(*OFFICE, "--entity", "Acme IT GmbH")
        await until_both(200, "")
        file = tmp_path / "data" / "catalogue.yaml"
        file.write_text(file.read_text().replace('compute_country: "DE"', 'compute_country: "US"'))
        await until_both(403, "process_in")
        file.unlink()
        await until_both(403, "facts.missing")


@asynccontextmanager
async def second(made):
    """Another gateway on the same folder."""
    config = load_settings(data=made.data, node="second", audit={"reserve_bytes": 1 << 20})
    async with (
        open_gateway(config) as gateway,
        serving(gateway.app, config.listen.model_copy(update={"port": 0})) as port,
    ):
        yield f"http://127.0.0.1:{port}"
