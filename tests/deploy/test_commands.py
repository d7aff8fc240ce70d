"""The commands that the pages show for compose, systemd and Kubernetes, word for word, each in the environment that it
has there and in no other: containers' and units' own variables, no shell of the gateway's entrypoint."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from audit.files.secret_file import LoosePermissions, read_secret
from gateway.installation.installation import Installation
from gateway.installation.key_set import export_keys
from tests.deploy.test_files import unit
from tests.deploy.test_operations import TEXT, databases
from tests.fakes.postgresql import postgresql
from tests.fakes.warm_command import program

TREE = Path(__file__).parents[2]
COMPOSE = (TREE / "deploy" / "compose" / "compose.yaml").read_text()


class Host:
    """Paths and servers of a description, each put where this machine has it; commands run with nothing inherited."""

    def __init__(self, folder, places):
        self.folder, self.places = folder, places
        (folder / "bin").mkdir()
        (folder / "bin" / "domicile").symlink_to(program())

    def here(self, text):
        for there, here in self.places.items():
            text = text.replace(there, str(here))
        return text

    def environment(self, variables):
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self.folder)} | {k: self.here(str(v)) for k, v in variables.items()}

    def run(self, words, variables, code=0):
        done = subprocess.run(
            [self.here(word) for word in words],
            env=self.environment(variables),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def started(self, words, variables):
        """The base URL of the gateway that they start."""
        log = self.folder / "gateway.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [self.here(word) for word in words],
                env=self.environment(variables),
                cwd=self.folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            for _ in range(1200):
                said = re.search(r"listening on (http://\S+)/v1\n", log.read_text())
                if said is not None:
                    break
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            assert said is not None, log.read_text()
            yield said[1].replace("0.0.0.0", "127.0.0.1")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def founded(data):
    """Databases in the folder that are in PostgreSQL."""
    return [file for file in (data / "control.db", data / "audit" / "log.db") if file.exists()]


def ask(url, token, body=None):
    """The answer's JSON; the call has to succeed."""
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as answer:
        return json.loads(answer.read())


def first_operator(base, printed):
    """The access token of the operator that the running gateway lets in with what the command printed."""
    token = printed.strip().splitlines()[-1]
    return ask(f"{base}/admin/v1/bootstrap", token, {"display_name": "Ada"})["token"]["token"]


def still_known(base, token):
    ask(f"{base}/admin/v1/tenants", token)


def shown(pattern):
    (line,) = re.findall(pattern, TEXT, re.MULTILINE)
    return line


@pytest.fixture(scope="module")
def servers():
    with postgresql() as url, databases(url, "cmd_control", "cmd_record") as urls:
        yield urls


@pytest.fixture
def empty(servers):
    with postgresql_again(servers) as urls:
        yield urls


@contextmanager
def postgresql_again(urls):
    import psycopg

    for url in urls:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("DROP SCHEMA public CASCADE")
            db.execute("CREATE SCHEMA public")
            db.execute("DROP SCHEMA IF EXISTS domicile_audit CASCADE")
    yield urls


def without_password(url):
    return url.replace("postgres:@", "postgres@").replace("postgres:", "postgres", 1) if ":@" in url else url


def test_compose_step_by_step_as_its_head_says(tmp_path, empty):
    control, record = map(without_password, empty)
    described = yaml.safe_load(COMPOSE)
    service = described["services"]["gateway"]
    host = Host(tmp_path, {
        "/run/secrets/postgres": tmp_path / "mounted" / "postgres",
        "/run/secrets": tmp_path / "mounted",
        "/run/domicile": tmp_path / "copied",
        "/etc/domicile/config.yaml": tmp_path / "config.yaml",
        "/var/lib/domicile": tmp_path / "data",
        "postgresql://domicile@postgres/control": control,
        "postgresql://domicile@postgres/record": record,
        "port: 8400": "port: 0",
        "http://otel-collector:4318": "http://127.0.0.1:9",
    })  # fmt: skip
    for folder, mode in (("mounted", 0o755), ("copied", 0o700)):
        (tmp_path / folder).mkdir(mode)
    for name in ("postgres", "oidc-secret"):
        (tmp_path / "mounted" / name).write_text("0123abc")
        (tmp_path / "mounted" / name).chmod(0o644)
    (tmp_path / "config.yaml").write_text(host.here(described["configs"]["gateway"]["content"]))
    variables = (
        {"DOMICILE_DATA": "/var/lib/domicile"}
        | service["environment"]
        | dict.fromkeys(("DOMICILE__SINKS__RECORD", "DOMICILE__SINKS__TELEMETRY"), "FR")
    )
    del variables["DOMICILE_REDIS_URL"]
    started = [*service["entrypoint"], service["command"][0].replace("$$", "$")]
    (step,) = re.findall(r"^#   docker compose \S+ \S+ exec gateway (domicile .*)$", COMPOSE, re.MULTILINE)
    assert step == shown(r"^docker compose .* exec gateway (domicile .*)$")
    with host.started(started, variables) as base:
        first_operator(base, host.run(shlex.split(step), variables))
        assert not founded(tmp_path / "data"), "no second installation was founded"
        with pytest.raises(LoosePermissions):
            read_secret(tmp_path / "mounted" / "oidc-secret")
        assert read_secret(tmp_path / "copied" / "oidc-secret") == b"0123abc", "as the gateway demands"
    shell_of_the_host = {"DOMICILE_DATA": "/var/lib/domicile"}
    host.run(shlex.split(step), shell_of_the_host, code=1)
    assert not founded(tmp_path / "data")


def test_an_operators_shell_beside_the_systemd_unit(tmp_path, empty):
    control, record = map(without_password, empty)
    values = unit("domicile.service")
    host = Host(tmp_path, {
        "/etc/domicile": tmp_path,
        "/var/lib/domicile": tmp_path / "data",
        "/opt/domicile/bin/domicile": tmp_path / "bin" / "domicile",
    })  # fmt: skip
    (tmp_path / "postgres").write_text("0123abc")
    stores = {"url": control, "record_url": record, "password_file": str(tmp_path / "postgres")}
    settings = {"data": str(tmp_path / "data"), "listen": {"port": 0}, "sinks": {"record": "FR"}, "database": stores}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings | {"fleet": {"launcher": "none"}}))
    variables = dict(pair.split("=", 1) for key, value in values if key == "Environment" for pair in shlex.split(value))
    host.run(shlex.split(shown(r"^sudo -u domicile (env .* init .*)$")), {})
    line = shown(r"^sudo -u domicile (env .* person bootstrap)$")
    (command,) = (value for key, value in values if key == "ExecStart")
    with host.started(shlex.split(command), variables) as base:
        first_operator(base, host.run(shlex.split(line), {}))
        host.run(["domicile", "person", "bootstrap", "--data", "/var/lib/domicile"], {}, code=1)
        assert not founded(tmp_path / "data"), "no second installation was founded"


def test_a_pod_starts_again_with_each_key_set_and_its_commands_find_the_databases(tmp_path, empty):
    """The init container runs at each start of the pod, without the variables of the other container."""
    control, record = empty
    documents = yaml.safe_load_all((TREE / "deploy" / "kubernetes" / "rendered" / "eu-fr.yaml").read_text())
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in documents
        if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "gateway"
    )
    (first,) = [each for each in pod["initContainers"] if each["name"] == "keys"]
    (gateway,) = pod["containers"]
    host = Host(tmp_path, {
        "/etc/domicile": tmp_path, "/var/lib/domicile": tmp_path / "data", "/run/keys": tmp_path / "secret",
    })  # fmt: skip
    (tmp_path / "config.yaml").write_text(
        f"data: {tmp_path / 'data'}\nlisten: {{port: 0}}\nfleet: {{launcher: none}}\n"
    )
    laptop = Installation.create(tmp_path / "laptop", "eu-fr")
    export_keys(laptop, tmp_path / "secret")
    known = {"control": control, "record": record, "values": "", "limits": "", "metadata.name": "gateway-0"}
    variables = {"DOMICILE_DATA": "/var/lib/domicile"}
    for each in gateway["env"]:
        given = each.get("valueFrom", {})
        name = given.get("secretKeyRef", {}).get("key") or given.get("fieldRef", {}).get("fieldPath")
        variables[each["name"]] = each.get("value") or known[name]
    words = shlex.split(shown(r"^kubectl -n domicile exec gateway-0 -c gateway -- (domicile .*)$"))

    def start():
        host.run(["domicile", *first["args"]], {"DOMICILE_DATA": "/var/lib/domicile"})
        return host.started(["domicile", *gateway["args"]], variables)

    with start() as base:
        token = first_operator(base, host.run(words, variables))
        host.run(["domicile", "audit", "rotate"], variables)
        host.run(["domicile", "secrets", "rotate"], variables)
        host.run(["domicile", "init", "--export-keys", str(tmp_path / "newer")], variables)
    host.run(["domicile", *first["args"]], {"DOMICILE_DATA": "/var/lib/domicile"})  # with the Secret of before
    (tmp_path / "secret").rename(tmp_path / "older")
    (tmp_path / "newer").rename(tmp_path / "secret")
    with start() as base:
        still_known(base, token)
    assert not founded(tmp_path / "data")
    host.run(["domicile", "audit", "verify"], variables)
