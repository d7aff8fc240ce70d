"""Logging in and out, where credentials are kept, and which installation a command is for."""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from aiohttp import web
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.cli.remote import credentials
from gateway.cli.remote.credentials import Credentials, CredentialsError
from gateway.identity.keys import generate_key
from tests.fakes.lab import lab

TOKEN = generate_key(kind="admin").token


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Of a user who has no data folder here."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DOMICILE_DATA", raising=False)
    monkeypatch.delenv("DOMICILE_URL", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "config" / "domicile" / "credentials"


def run(*words, **more):
    return CliRunner().invoke(app, words, **more)


async def ran(*words, **more):
    return await asyncio.to_thread(run, *words, **more)


@pytest.fixture
async def served(tmp_path):
    """A gateway with a tenant, and an operator's token."""
    async with lab(tmp_path / "served", backends={}) as made:
        person = made.control.create_person(None, "Ada", ["operator"])
        kept, token = made.control.create_token(None, person.id, expires_at=datetime.now(UTC) + timedelta(days=1))
        yield SimpleNamespace(url=made.base, token=token.token, person=person.id, made=made, id=kept.id)


async def logged_in(served):
    said = await ran("login", "--url", served.url, "--token-file", "-", input=served.token + "\n")
    assert said.exit_code == 0, said.output
    return said


async def test_a_login_is_tried_and_kept_for_its_user_alone(served, home):
    old = os.umask(0)
    try:
        said = await logged_in(served)
    finally:
        os.umask(old)
    assert said.stdout == (
        f"logged in to {served.url} as person {served.person} of the installation's staff: operator\n"
    )
    assert home.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in home.iterdir()} == {0o600}
    assert served.token not in said.output
    assert "acme" in (await ran("tenant", "list")).stdout


async def test_a_token_that_the_gateway_does_not_know_is_not_kept(served, home):
    said = await ran("login", "--url", served.url, "--token-file", "-", input=TOKEN + "\n")
    assert said.exit_code == 1 and "does not take your token" in said.stderr
    assert TOKEN not in said.output and not home.exists()


async def test_a_token_that_is_revoked_says_what_to_do(served):
    await logged_in(served)
    await asyncio.to_thread(served.made.control.revoke_token, None, served.person, served.id)
    said = await ran("tenant", "list")
    assert said.exit_code == 1
    assert said.stderr == (
        f"error: the gateway at {served.url} does not take your token; run: domicile login --url {served.url}\n"
    )


async def test_each_url_has_its_own_and_a_logout_deletes_one(served, home):
    await logged_in(served)
    credentials.save(Credentials("https://other.example", TOKEN))
    assert credentials.current() == "https://other.example"
    said = await ran("tenant", "list", env={"DOMICILE_URL": served.url})
    assert "acme" in said.stdout
    assert (await ran("logout")).stdout == "the token for https://other.example is deleted here\n"
    assert credentials.load(served.url).token == served.token
    assert (await ran("logout", "--url", served.url, "--json")).exit_code == 0
    assert list(home.iterdir()) == []
    assert "you are not logged in anywhere" in (await ran("logout")).stderr


async def test_a_token_from_a_file_that_others_can_read_is_refused(served, tmp_path):
    file = tmp_path / "token"
    file.write_text(served.token)
    file.chmod(0o644)
    assert (await ran("login", "--url", served.url, "--token-file", str(file))).exit_code == 1
    file.chmod(0o600)
    assert (await ran("login", "--url", served.url, "--token-file", str(file))).exit_code == 0


@pytest.mark.parametrize(
    "url", ["http://ai.example.eu", "https://u:p@ai.example.eu", "ai.example.eu", "https://ai.example.eu?x=1", ""]
)
def test_a_token_is_sent_to_no_url_that_is_unsafe(url):
    said = run("login", "--url", url, "--token-file", "-", input=TOKEN + "\n")
    assert said.exit_code == 2 and "not an https URL of a gateway" in said.stderr
    assert TOKEN not in said.output


@pytest.mark.parametrize(
    "token", ["", "dom_live_x", "secret", generate_key().token], ids=["", "cut", "word", "of a project"]
)
def test_what_is_no_access_token_is_not_sent(token):
    said = run("login", "--url", "http://127.0.0.1:9", "--token-file", "-", input=token + "\n")
    assert said.exit_code == 2 and "this is no access token" in said.stderr


async def test_a_redirect_is_not_followed_with_the_token(home):
    asked = []

    async def answer(request):
        asked.append(request.path)
        return web.Response(status=302, headers={"location": "/elsewhere"})

    server = web.Application()
    server.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(server, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = site._server.sockets[0].getsockname()[1]
        said = await ran("login", "--url", f"http://127.0.0.1:{port}", "--token-file", "-", input=TOKEN + "\n")
    finally:
        await runner.cleanup()
    assert said.exit_code == 1 and "is no admin API" in said.stderr
    assert asked == ["/admin/v1/me"] and not home.exists()


def test_a_gateway_that_is_away_is_named():
    credentials.save(Credentials("http://127.0.0.1:9", TOKEN))
    said = run("tenant", "list")
    assert said.exit_code == 1 and "the gateway at http://127.0.0.1:9 cannot be reached" in said.stderr


def test_a_folder_that_is_named_or_lies_here_comes_before_a_login(tmp_path):
    credentials.save(Credentials("http://127.0.0.1:9", TOKEN))
    assert run("init", "--cell", "eu-1", "--data", str(tmp_path / "data")).exit_code == 0
    assert run("tenant", "list", "--data", str(tmp_path / "data")).exit_code == 0
    assert run("init", "--cell", "eu-1").exit_code == 0
    assert run("tenant", "list").exit_code == 0, "./domicile-data"


def test_a_folder_and_a_url_that_are_both_named_are_a_mistake(tmp_path):
    said = run("tenant", "list", "--data", str(tmp_path), env={"DOMICILE_URL": "http://127.0.0.1:9"})
    assert said.exit_code == 2 and "both named" in said.stderr


def test_credentials_that_others_can_read_are_not_used(home):
    credentials.save(Credentials("https://ai.example.eu", TOKEN))
    for file in home.iterdir():
        file.chmod(0o644)
    with pytest.raises(CredentialsError):
        credentials.load("https://ai.example.eu")
    said = run("tenant", "list")
    assert said.exit_code == 1 and TOKEN not in said.output


def test_one_that_nobody_logged_in_to_says_how():
    said = run("tenant", "list", env={"DOMICILE_URL": "https://ai.example.eu"})
    assert said.stderr == (
        "error: you are not logged in to https://ai.example.eu; run: domicile login --url https://ai.example.eu\n"
    )


@pytest.mark.parametrize(
    "words", [["doctor"], ["audit", "verify"], ["backup", "check", "x"], ["secrets", "status"], ["key", "rekey"],
              ["retention", "run"], ["region", "check"], ["audit", "show"], ["person", "bootstrap"]],
    ids=" ".join,
)  # fmt: skip
def test_a_command_on_files_says_so_by_its_name(words, tmp_path):
    (tmp_path / "work" / "x.yaml").write_text("policy: acme")
    credentials.save(Credentials("http://127.0.0.1:9", TOKEN))
    said = run(*words, env={"DOMICILE_URL": "http://127.0.0.1:9"})
    assert said.exit_code == 1
    assert "on its host" in said.stderr or "on the installation's own host" in said.stderr


async def test_what_a_role_may_not_do_is_refused_in_the_words_of_the_gateway(served):
    person = served.made.control.create_person("acme", "Grace", ["auditor"])
    expires = datetime.now(UTC) + timedelta(days=1)
    _, token = served.made.control.create_token("acme", person.id, expires_at=expires)
    await ran("login", "--url", served.url, "--token-file", "-", input=token.token + "\n")
    said = await ran("tenant", "create", "globex")
    assert (said.exit_code, said.stderr) == (1, "error: roles in tenant acme do not reach the installation\n")
    assert "acme" in json.dumps(json.loads((await ran("tenant", "show", "acme", "--json")).stdout))
