"""Debian's Prometheus with the configuration, rules and dashboard that are shipped, before a gateway under traffic.

The gateway is the command as an operator runs it, with a certificate; Prometheus reaches it and nothing else. What its
backends are asked for is said by the engine's own metrics, of an engine that is a fake, with a card.
"""

import asyncio
import json
import re
import shutil
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
import yaml

from audit.incidents.subject_requests import receive
from audit.log.audit_log import AuditLog
from audit.private.log_and_value_store import open_log_and_values
from backend.engine.core.progress import Stats
from backend.process.gpu_meter import GpuMeter, Reading
from backend.process.metrics import Metrics
from gateway.installation.installation import Installation
from gateway.limits.limit_kinds import LimitFigures
from regions.identity.identity import BackendIdentity
from tests.deploy.test_behind_a_proxy import certificate
from tests.deploy.test_files import DEPLOY, rules, run
from tests.fakes.backend import FakeBackend, running
from tests.fakes.lab import POLICY, Lab, chat, open_control
from tests.fakes.needs import missing
from tests.fakes.ports import free_port
from tests.gateway.test_stopping import gateway

PRICE = {"input_eur_per_million": 1, "output_eur_per_million": 1}
BUSY = {"globex": LimitFigures(requests_per_minute=1), "acme": LimitFigures(eur_per_month=50)}
SELECTOR = re.compile(r"\b((?:domicile|gen_ai)[a-z_0-9:]*|up)(\{[^}]*\})?")


class Engine:
    """An engine's metrics that rise each time that they are asked for."""

    def __init__(self):
        self._now = 0.0
        self._meter = GpuMeter(lambda: Reading(1e9, 8e10, 0.5, 300.0), lambda: 2, lambda: self._now)
        self._metrics = Metrics("small", self._stats, lambda: True, meter=self._meter)

    def _stats(self):
        n = int(self._now)
        return Stats(2, 1, 40, 100, n, 100 * n, 60 * n, 10 * n, 30 * n, 20 * n)

    def __call__(self):
        self._now += 1.0
        self._meter.sample()
        metrics = self._metrics
        metrics.time_to_first_token.observe(0.1)
        metrics.time_per_output_token.observe(0.01)
        metrics.request_duration.observe(0.5)
        metrics.count_run(self._now - 1, self._now - 0.9, self._now, 1)
        metrics.input_tokens.inc(10)
        metrics.output_tokens.inc(20)
        metrics.count_request("completed")
        return metrics.render().decode()


async def owed(data):
    """Put a request of a person of acme on record, as `domicile audit request create` does."""
    installation = Installation.open(data)
    path, signer = installation.audit_log, installation.signer()
    opened = open_log_and_values(installation.side_store, installation.keys)
    async with await AuditLog.open(path, signer=signer, node="cli-1", open_store=opened) as log:
        context = installation.context(log, installation.keys, signer, 30)
        await receive(context, "acme", right="access", subject="jan@example.org")


@asynccontextmanager
async def cell(folder):
    """A gateway with TLS, backends of two tenants, and the address of the gateway."""
    key, chain = certificate()
    (folder / "tls.key").write_bytes(key)
    (folder / "tls.pem").write_bytes(chain)
    (folder / "tls.key").chmod(0o600)
    control = await asyncio.to_thread(open_control, folder / "data")
    made = Lab(folder / "data", control)
    await owed(folder / "data")
    backends = {
        "acme/acme-1": FakeBackend(metrics=Engine()),
        "acme/acme-2": FakeBackend(model="dying", die_after=1),
        "globex/globex-1": FakeBackend(metrics=Engine()),
    }
    for tenant in ("acme", "globex"):
        await asyncio.to_thread(made.tenant, tenant, POLICY)
        control.set_limits(tenant, BUSY[tenant])
    tls = {"cert_file": str(folder / "tls.pem"), "key_file": str(folder / "tls.key"), "port": 0}
    async with running(backends["acme/acme-1"]), running(backends["acme/acme-2"]), running(backends["globex/globex-1"]):
        for place, backend in backends.items():
            tenant, name = place.split("/")
            identity = BackendIdentity("eu-1", tenant, "eu-fr-par", name)
            control.register_backend(identity, url=backend.url, models=[backend.model])
        trusting = aiohttp.TCPConnector(ssl=False)
        async with (
            gateway(made, folder, listen=tls, prices={"small": PRICE, "dying": PRICE}) as (_, base),
            aiohttp.ClientSession(base, connector=trusting) as http,
        ):
            yield made, http, base


async def traffic(made, http, until):
    """A bit of everything that is counted: good calls, redacted, blocked, broken off, over a limit, without a key."""

    async def call(tenant, content, key=None, **more):
        sent = {"authorization": f"Bearer {key or made.key(f'{tenant}/main')}"}
        with suppress(aiohttp.ClientError):
            async with http.post("/v1/chat/completions", json=chat(content, **more), headers=sent) as answer:
                await answer.read()

    while not until.is_set():
        await call("acme", "write to jan@example.org", stream=True)
        await call("acme", "AKIAIOSFODNN7EXAMPLE")
        await call("acme", "hi", model="dying", stream=True)
        await call("acme", "hi", key="dom_live_wrong")
        await call("globex", "hi")
        await asyncio.sleep(0.3)


def faster(text):
    """Rules and configuration with their intervals of seconds in place of a quarter of a minute."""
    return re.sub(r"(interval: )15s", r"\g<1>1s", text)


@asynccontextmanager
async def prometheus(folder, base):
    """Its API. The configuration is the shipped one, but for the gateway's address, its authority and the intervals."""
    command = shutil.which("prometheus")
    if command is None:
        missing("no prometheus: install Debian's prometheus, which `.ci/run` does")
    config = yaml.safe_load(faster((DEPLOY / "prometheus" / "prometheus.yaml").read_text()))
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [base.removeprefix("https://")]}]
        job["tls_config"] = {"insecure_skip_verify": True}
        job.pop("scrape_timeout", None)  # which may not be longer than the interval
    (folder / "rules.yaml").write_text(faster((DEPLOY / "prometheus" / "rules.yaml").read_text()))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    words = [
        f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(command, *words, stderr=log, stdout=log)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as api:
            await up(api, process, folder / "prometheus.log")
            yield api
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def up(api, process, log):
    async with asyncio.timeout(60):
        while process.returncode is None:
            with suppress(aiohttp.ClientError):
                async with api.get("/-/ready") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise AssertionError(log.read_text())


async def asked(api, query):
    async with api.get("/api/v1/query", params={"query": query}) as answer:
        said = await answer.json()
    assert said["status"] == "success", (query, said)
    return said["data"]["result"]


async def without_data(api, queries):
    """Those of `queries` for which there is no sample that is a number."""
    found = {query: await asked(api, query) for query in queries}
    return {query for query, samples in found.items() if not any(s["value"][1] != "NaN" for s in samples)}


def panels():
    """The query of every target of every panel, for all tenants."""
    board = json.loads((DEPLOY / "grafana" / "domicile.json").read_text())
    return {t["expr"].replace("$tenant", ".*") for panel in board["panels"] for t in panel.get("targets", ())}


def watched():
    """A selector of every series that an alert is about. Which value a label has says when it fires, so it asks that
    the label is there; but for codes, whose counters have to be there before they rise, and jobs."""
    found = set()
    for rule in rules():
        bare = re.sub(r"\b(?:by|on) \([^)]*\)", "", rule["expr"])
        for name, matchers in SELECTOR.findall(bare):
            labels = re.findall(r'([a-z_]+)(=~?|!=)("[^"]*")', matchers)
            asks = [f"{n}{op}{v}" if n in ("code", "job") else f'{n}!=""' for n, op, v in labels]
            found.add(f"{name}{{{','.join(asks)}}}")
    return found


async def test_every_panel_and_every_alert_is_fed_by_gateways_alone(tmp_path):
    over = asyncio.Event()
    async with cell(tmp_path) as (made, http, base), prometheus(tmp_path, base) as api:
        calls = asyncio.create_task(traffic(made, http, over))
        wanted = panels() | watched()
        assert len(panels()) >= 38 and len(watched()) >= 20
        left = wanted
        with suppress(TimeoutError):
            async with asyncio.timeout(90):
                while left:
                    await asyncio.sleep(1)
                    with suppress(aiohttp.ClientError):
                        left = await without_data(api, left)
        over.set()
        await calls
        assert not left
        up = {s["metric"]["backend"]: s["value"][1] for s in await asked(api, "domicile_backend_up")}
        assert up == {"acme-1": "1", "acme-2": "0", "globex-1": "1"}, "the second has no metrics"
        async with api.get("/api/v1/rules") as answer:
            loaded = [rule for group in (await answer.json())["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in loaded} == {
        rule.get("alert") or rule["record"]: "ok" for rule in rules()
    }
    assert "@example.org" not in (tmp_path / "up.log").read_text()


@pytest.mark.parametrize("name", ["prometheus.yaml", "kubernetes.yaml"])
def test_promtool_accepts_the_configuration(name, tmp_path):
    if not shutil.which("promtool"):
        missing("no promtool: install Debian's prometheus, which `.ci/run` does")
    (tmp_path / "ca.crt").touch()
    text = (DEPLOY / "prometheus" / name).read_text().replace("/etc/prometheus/", f"{tmp_path}/")
    shutil.copy(DEPLOY / "prometheus" / "rules.yaml", tmp_path)
    (tmp_path / name).write_text(text)
    said = run("promtool", "check", "config", tmp_path / name)
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_alert_is_tried_where_it_fires_and_where_it_does_not():
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yaml").read_text())["tests"]
    tried = [
        (check["alertname"], bool(check["exp_alerts"])) for test in tests for check in test.get("alert_rule_test", ())
    ]
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert {name for name, fires in tried if fires} == alerts
    assert {name for name, fires in tried if not fires} == alerts
