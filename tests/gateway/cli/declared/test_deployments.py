"""``domicile apply`` for deployments: made, changed, mended and deleted, in a data folder and over an admin API."""

import asyncio
import json

import pytest
import yaml
from sqlmodel import select
from typer.testing import CliRunner

from gateway.cli.app import _recorded_admin, app
from gateway.database.tables.fleet import DeploymentRow
from gateway.store.reports.inventory import Inventory
from regions.fleet.deployment import Scale
from tests.fakes.lab import Lab, open_control
from tests.gateway.cli.declared.test_apply_over_the_api import elsewhere

SMALL = {"model": "small", "weights": "small.gguf", "regions": ["eu-fr-par"]}
NOTHING = (0, ["nothing to change"])


@pytest.fixture(autouse=True)
def _environment(tmp_path, monkeypatch):
    """The planner takes seconds to start: here it finds no fault, `test_feasibility` asks it."""
    monkeypatch.setattr("gateway.installation.feasibility.check_start", lambda weights, card, memory, replicas: None)
    monkeypatch.setenv("DOMICILE__FLEET__GPUS", "[0]")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("DOMICILE_DATA", "DOMICILE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    models = tmp_path / "served" / "data" / "models"
    models.mkdir(parents=True)
    for name in ("small.gguf", "large.gguf"):
        (models / name).touch()


class Site:
    """An installation with tenant acme, and a folder that says what its deployments should be."""

    def __init__(self, made, folder, where):
        self.made, self._folder, self._where = made, folder, where

    def write(self, **deployments):
        self._folder.mkdir(exist_ok=True)
        text = yaml.safe_dump({"tenants": {"acme": {"deployments": deployments}}})
        (self._folder / "all.yaml").write_text(text)

    async def apply(self, *more):
        words = ["apply", "-f", str(self._folder), *more, *self._where]
        said = await asyncio.to_thread(CliRunner().invoke, app, words, obj=_recorded_admin)
        assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
        return said

    async def lines(self, *more):
        said = await self.apply(*more)
        return said.exit_code, said.stdout.splitlines()

    def there(self):
        rows = self.made.control._database
        with rows.read() as session:
            return {each.id: each for each in session.exec(select(DeploymentRow)).all() if each.deleted_at is None}

    def events(self):
        return [each["type"] for each in self.made.events("acme") if "deployment" in each["type"]]


@pytest.fixture(params=["the data folder", "the admin API"])
async def site(request, tmp_path):
    data = tmp_path / "served" / "data"
    if request.param == "the data folder":
        made = Lab(data, open_control(data))
        made.control.create_tenant("acme")
        yield Site(made, tmp_path / "folder", ["--data", str(data)])
        made.control._database.close()
        return
    async with elsewhere(tmp_path, "operator") as made:
        made.control.create_tenant("acme")
        assert [each.id for each in Inventory(made.control._database).tenants()] == ["acme"]
        yield Site(made, tmp_path / "folder", [])


async def test_one_is_made_once_and_drift_is_shown_and_mended(site):
    site.write(small={**SMALL, "max_replicas": 3, "idle_s": 60, "eur_per_hour": 2.5})
    assert await site.lines("--plan") == (2, ["+ deployment acme/small of small"])
    assert site.there() == {}
    assert await site.lines() == (0, ["+ deployment acme/small of small"])
    made = site.there()["small"]
    assert (made.weights, made.regions, made.max_replicas, made.idle_s) == ("small.gguf", ["eu-fr-par"], 3, 60)
    assert made.micro_eur_per_hour == 2_500_000
    for _ in range(2):
        assert await site.lines("--plan") == NOTHING
        assert (await site.apply()).exit_code == 0
    assert site.events() == ["admin.deployment.created"]
    site.made.control.scale_deployment("acme", "small", made_scale(site, max_replicas=1))
    assert await site.lines() == (0, ["~ deployment acme/small: max_replicas 1 -> 3"])
    site.made.control.drain_deployment("acme", "small")
    assert await site.lines() == (0, ["~ deployment acme/small: works again"])
    assert await site.lines("--plan") == NOTHING


def made_scale(site, **figures):
    row = site.there()["small"]
    return Scale(**{name: getattr(row, name) for name in Scale.model_fields} | figures)


async def test_figures_and_the_pin_are_changed_and_what_cannot_be_is_named(site):
    site.write(small=SMALL)
    await site.apply()
    digest = "a" * 64
    site.write(small={**SMALL, "min_replicas": 1, "max_replicas": 2, "weights_sha256": digest})
    assert await site.lines() == (
        0,
        [
            f"~ deployment acme/small: pinned to the weights {digest}",
            "~ deployment acme/small: min_replicas 0 -> 1, max_replicas 1 -> 2",
        ],
    )
    assert site.there()["small"].weights_sha256 == digest
    assert await site.lines("--plan") == NOTHING
    site.write(small={**SMALL, "min_replicas": 1, "max_replicas": 2, "weights": "large.gguf"})
    said = await site.apply()
    assert said.exit_code == 1
    assert said.stdout == "! deployment acme/small: weights stays 'small.gguf'; make another deployment\n"
    assert site.there()["small"].weights == "small.gguf"


async def test_another_spelling_of_a_card_and_parts_of_a_cent_are_no_drift(site):
    site.write(small={**SMALL, "gpu": "1xh100", "eur_per_hour": 1.23456789})
    assert (await site.apply()).exit_code == 0
    assert await site.lines("--plan") == NOTHING


async def test_one_is_deleted_only_where_that_was_asked_for_and_does_not_come_back(site):
    site.write(small=SMALL, large={**SMALL, "model": "large", "weights": "large.gguf"})
    await site.apply()
    site.write(small=SMALL)
    assert await site.lines("--plan") == NOTHING
    assert (await site.apply("--prune")).exit_code == 1, "it asks, and nobody answers"
    assert set(site.there()) == {"small", "large"}
    assert await site.lines("--prune", "--yes") == (0, ["- deployment acme/large"])
    assert set(site.there()) == {"small"}
    assert await site.lines("--prune", "--plan") == NOTHING
    site.write(small=SMALL, large={**SMALL, "model": "large", "weights": "large.gguf"})
    said = await site.apply()
    assert said.exit_code == 1
    assert said.stdout == "! deployment acme/large was deleted for good; take it out, or use another name\n"


async def test_another_name_for_a_model_takes_the_place_of_the_one_before(site):
    site.write(small=SMALL)
    await site.apply()
    site.write(smaller=SMALL)
    said = await site.apply()
    assert said.exit_code == 1 and "'small' of tenant 'acme' serves 'small' already" in said.stderr
    assert set(site.there()) == {"small"}
    assert await site.lines("--prune", "--yes") == (
        0,
        ["- deployment acme/small", "+ deployment acme/smaller of small"],
    )
    assert set(site.there()) == {"smaller"}


IMPOSSIBLE = [
    ({"regions": ["eu-atlantis"]}, "eu-atlantis"),
    ({"weights": "none.gguf"}, "there are no weights 'none.gguf'"),
    ({"gpu": "h100", "max_replicas": 5}, "5 replicas need a GPU each"),
    ({"gpu": "abacus of bones"}, "acme.deployments.small.gpu"),
    ({"min_replicas": 3, "max_replicas": 2}, "3 replicas at least and 2 at most"),
]


async def test_what_could_not_run_is_refused_as_the_command_refuses_it(site):
    for change, says in IMPOSSIBLE:
        site.write(small={**SMALL, **change})
        said = await site.apply()
        assert said.exit_code == 1 and says in said.stderr and "; " in said.stderr, said.stderr
        assert site.there() == {}


async def test_more_replicas_than_could_run_are_refused_and_nothing_is_changed(site):
    site.write(small={**SMALL, "gpu": "h100"})
    assert (await site.apply()).exit_code == 0
    site.write(small={**SMALL, "gpu": "h100", "max_replicas": 9})
    said = await site.apply()
    assert said.exit_code == 1 and "9 replicas need a GPU each" in said.stderr
    assert site.there()["small"].max_replicas == 1


async def test_a_tenants_deployments_are_its_own(site):
    site.write(small=SMALL)
    await site.apply()
    site.made.control.create_tenant("globex")
    folder = yaml.safe_dump({"tenants": {"globex": {"deployments": {"small": SMALL}}}})
    (site._folder / "all.yaml").write_text(folder)
    said = await site.apply("--prune", "--yes", "--json")
    assert said.exit_code == 0
    assert [each["what"] for each in json.loads(said.stdout)] == ["deployment globex/small of small"]
    assert site.events() == ["admin.deployment.created"], "acme's is as it was"
