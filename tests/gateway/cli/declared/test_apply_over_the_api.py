"""``domicile apply`` for an installation elsewhere: the same folder over its admin API, policies by two people."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.store.reports.inventory import Inventory
from tests.fakes.lab import lab
from tests.gateway.cli.declared.test_apply import POLICY, WANTED


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("DOMICILE_DATA", "DOMICILE_URL"):
        monkeypatch.delenv(name, raising=False)
    made = tmp_path / "wanted"
    (made / "policies").mkdir(parents=True)
    (made / "policies" / "acme.yaml").write_text(POLICY)
    (made / "all.yaml").write_text(yaml.safe_dump(WANTED, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    return made


async def run(*words):
    return await asyncio.to_thread(CliRunner().invoke, app, words)


async def apply(folder, *more):
    return await run("apply", "-f", str(folder), *more)


def inventory(made):
    return Inventory(made.control._database)


@asynccontextmanager
async def elsewhere(tmp_path, *roles):
    """An installation without tenants, to which a person of the staff with these roles has logged in."""
    async with lab(tmp_path / "served", set_up=lambda made: None, backends={}) as made:
        person = made.control.create_person(None, "Ada", roles)
        _, token = made.control.create_token(None, person.id, expires_at=datetime.now(UTC) + timedelta(days=1))
        file = tmp_path / "token"
        file.write_text(token.token)
        file.chmod(0o600)
        said = await run("login", "--url", made.base, "--token-file", str(file))
        assert said.exit_code == 0, said.output
        yield made


async def test_all_is_made_and_the_policy_waits_for_a_second_person(tmp_path, folder):
    async with elsewhere(tmp_path, "operator") as made:
        planned = await apply(folder, "--plan")
        assert planned.exit_code == 2 and "+ tenant acme" in planned.stdout
        assert [tenant.id for tenant in inventory(made).tenants()] == []
        first = await apply(folder)
        assert first.exit_code == 0, first.output
        assert "policy of acme: policies/acme.yaml, proposed; a second person" in first.stdout
        assert first.stdout.count("dom_live_") == 2
        assert [one.active for one in inventory(made).policies("acme")] == []
        for _ in range(2):
            again = await apply(folder)
            assert again.exit_code == 1
            assert again.stdout == (
                "! policy of acme: policies/acme.yaml waits for a second person: domicile policy approve acme 1; "
                "apply again then\n"
            )
        assert len(inventory(made).proposals("acme")) == 1, "proposed once"
        own = await run("policy", "approve", "acme", "1")
        assert own.exit_code == 1 and "second person" in own.stderr
        made.control.approve_policy("acme", 1, person="cli")
        last = await apply(folder)
        assert last.exit_code == 0 and last.stdout == "+ policy of acme: policies/acme.yaml, by proposal 1\n"
        empty = await apply(folder, "--plan")
        assert (empty.exit_code, empty.stdout) == (0, "nothing to change\n")
        actors = {event["actor"] for event in made.events("acme") if event["type"].startswith("admin.project")}
        assert all(actor.startswith("key:") for actor in actors) and actors


async def test_a_policy_of_a_project_waits_for_that_of_its_tenant(tmp_path, folder):
    wanted = json.loads(json.dumps(WANTED))
    wanted["tenants"]["acme"]["projects"]["support"]["policy"] = "policies/support.yaml"
    (folder / "all.yaml").write_text(yaml.safe_dump(wanted, sort_keys=False))
    tighter = "policy: support\nversion: 1\nresidency: {process_in: [DE], store_in: EEA}\n"
    (folder / "policies" / "support.yaml").write_text(tighter)
    async with elsewhere(tmp_path, "operator") as made:
        first = await apply(folder)
        assert first.exit_code == 1 and "support.yaml waits for a policy of acme to be in force" in first.stdout
        made.control.approve_policy("acme", 1, person="cli")
        second = await apply(folder)
        assert second.exit_code == 1 and "by proposal 1" in second.stdout
        third = await apply(folder)
        assert third.exit_code == 0 and "support.yaml, proposed" in third.stdout
        made.control.approve_policy("acme", 1, person="cli", project="support")
        assert "by proposal 1" in (await apply(folder)).stdout
        assert (await apply(folder, "--plan")).exit_code == 0


async def test_another_document_is_another_proposal_and_one_that_was_withdrawn_is_proposed_again(tmp_path, folder):
    async with elsewhere(tmp_path, "operator") as made:
        await apply(folder)
        made.control.withdraw_policy("acme", 1)
        assert "proposed" in (await apply(folder)).stdout
        (folder / "policies" / "acme.yaml").write_text(POLICY.replace("version: 1", "version: 2"))
        assert "proposed" in (await apply(folder)).stdout
        states = [one.state for one in inventory(made).proposals("acme")]
        assert sorted(states) == ["submitted", "submitted", "withdrawn"]


async def test_what_a_role_may_not_do_ends_it_and_what_was_made_before_is_said(tmp_path, folder):
    async with elsewhere(tmp_path, "auditor") as made:
        said = await apply(folder)
        assert said.exit_code == 1 and "tenants.manage takes one of the roles operator" in said.stderr
        assert inventory(made).tenants() == []
    async with elsewhere(tmp_path / "other", "operator") as made:
        made.control.create_tenant("globex")
        made.control.revoke_tenant("globex")
        wanted = json.loads(json.dumps(WANTED))
        wanted["tenants"]["acme"]["projects"]["search"]["data_classes"] = ["x\n"]
        (folder / "all.yaml").write_text(yaml.safe_dump(wanted, sort_keys=False))
        said = await apply(folder, "--json")
        assert said.exit_code != 0
        assert {"dom_live"} == {each["key"][:8] for each in json.loads(said.stdout) if each["key"]}


async def test_what_is_pruned_is_revoked_there(tmp_path, folder):
    async with elsewhere(tmp_path, "operator") as made:
        await apply(folder)
        made.control.create_project("acme", "old", purpose="x", legal_basis="contract")
        said = await apply(folder, "--prune", "--yes")
        assert "- project acme/old, with its keys" in said.stdout
        assert {one.id for one in inventory(made).projects("acme") if one.revoked_at is not None} == {"old"}
