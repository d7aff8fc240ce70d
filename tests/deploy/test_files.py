"""Images, units, compose, alerts and the dashboard: each checked by its own tool, and against the code it names."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from backend.engine.core.progress import Stats
from backend.process.gpu_meter import GpuMeter, Reading
from backend.process.metrics import GAUGES, GPU_METRICS, Metrics
from gateway.cli.app import app
from gateway.configuration.settings import load_settings
from gateway.server.monitoring.backend_metrics import LABELS, Labelled, labelled
from gateway.server.monitoring.budgets import Budgets
from gateway.workers.metrics import written
from tests.deploy.test_kubernetes import CELLS, of_kind
from tests.fakes.needs import missing
from tests.gateway.request.test_telemetry import METRICS
from tests.regions.fleet.test_fleet import backend

TREE = Path(__file__).parents[2]
DEPLOY = TREE / "deploy"


def run(*command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)


# --- images ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gateway", "backend"])
def test_hadolint_has_nothing_to_say(name):
    said = run(Path(sys.executable).with_name("hadolint"), DEPLOY / f"Dockerfile.{name}")
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("name", ["gateway", "backend"])
def test_an_image_runs_as_nobody_special_and_installs_what_is_pinned_by_hash(name):
    text = (DEPLOY / f"Dockerfile.{name}").read_text()
    assert "USER 10001:10001" in text
    installs = [part for part in text.replace("\\\n", " ").split("&&") if "pip install" in part]
    assert len(installs) >= 3
    for part in installs:
        assert "--require-hashes" in part or "--no-deps --no-index" in part or "${TORCH}" in part, part
    for lock in re.findall(r"deploy/requirements/\w+\.txt", text):
        assert (TREE / lock).is_file()
    assert re.search(r'^ENTRYPOINT \["domicile"', text, re.MULTILINE)


def test_the_build_context_holds_what_an_installation_needs_and_nothing_else(tmp_path):
    """The wheel is built from the files that .dockerignore lets through, as the image builds it."""
    for line in (TREE / ".dockerignore").read_text().splitlines():
        if line.startswith("!") and (TREE / line[1:]).exists():
            source, target = TREE / line[1:], tmp_path / "context" / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
    code = (
        "import sys; sys.path.insert(0, '.');"
        " import gateway.cli.app, backend.wire, audit.events.schema, policy.document.schema"
    )
    assert run(sys.executable, "-I", "-c", code, cwd=tmp_path / "context").returncode == 0
    assert not (tmp_path / "context" / "tests").exists()


# --- compose ---------------------------------------------------------------------------------------------------------


def compose(name="compose"):
    return yaml.safe_load((DEPLOY / "compose" / f"{name}.yaml").read_text())


COMPOSE_SCHEMA = Draft202012Validator(
    json.loads((TREE / "tests" / "vectors" / "compose-spec" / "compose-spec.json").read_text())
)


@pytest.mark.parametrize("name", sorted(path.stem for path in (DEPLOY / "compose").glob("*.yaml")))
def test_a_compose_file_is_as_the_published_schema_has_it(name):
    assert [error.message for error in COMPOSE_SCHEMA.iter_errors(compose(name))] == []


def test_a_mistake_in_a_compose_file_is_found():
    for change in ({"read_onyl": True}, {"ports": 8400}, {"healthcheck": {"tests": ["CMD"]}}):
        broken = compose()
        broken["services"]["gateway"] |= change
        assert not COMPOSE_SCHEMA.is_valid(broken), change


def test_what_compose_names_in_one_place_it_defines_in_another():
    first, people = compose(), compose("people")
    secrets = first["secrets"] | people["secrets"]
    for service in [*first["services"].values(), *people["services"].values()]:
        assert set(service.get("secrets", ())) <= set(secrets)
        assert {each["source"] for each in service.get("configs", ())} <= set(first["configs"])
        volumes = [each.partition(":")[0] for each in service.get("volumes", ())]
        assert set(volumes) <= set(first["volumes"])
        assert set(service.get("depends_on", ())) <= set(first["services"])
    assert set(people["services"]) <= set(first["services"])
    assert {each["file"].partition("/")[0] for each in secrets.values()} == {"secrets"}, "which git ignores"


def test_every_root_is_read_only_and_every_service_that_can_be_asked_is_asked_after_its_health():
    services = compose()["services"]
    assert [name for name, service in services.items() if service.get("read_only") is not True] == []
    assert [name for name, service in services.items() if "healthcheck" not in service] == ["otel-collector"]
    places = dict(each.partition(":")[::2] for each in services["gateway"]["tmpfs"])
    assert "mode=0700,uid=10001" in places["/run/domicile"]


def test_people_are_configured_by_a_second_file_whose_secrets_are_those_that_the_gateway_copies(tmp_path, monkeypatch):
    given = compose("people")["services"]["gateway"]
    values = {"DOMICILE_ISSUER": "https://id.example.eu", "DOMICILE_CLIENT": "domicile",
              "DOMICILE_PUBLIC_URL": "https://ai.example.eu"}  # fmt: skip
    for name, value in given["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{(\w+):\?[^}]+\}", lambda found: values[found[1]], value))
    (tmp_path / "c.yaml").write_text(compose()["configs"]["gateway"]["content"])
    settings = load_settings(tmp_path / "c.yaml")
    assert settings.oidc.redirect_uri == "https://ai.example.eu/admin/v1/callback"
    assert [(each.group, each.role, each.staff) for each in settings.oidc.roles] == [("ai-operators", "operator", True)]
    files = {settings.oidc.client_secret_file, settings.scim.token_file}
    assert files == {Path("/run/domicile") / name for name in given["secrets"]}


def test_compose_publishes_on_loopback_alone_and_holds_no_password():
    services = compose()["services"]
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert not any(
            "password" in str(v).lower() for v in (service.get("environment") or {}).values() if "/run/" not in str(v)
        )
        assert "no-new-privileges:true" in service["security_opt"], name
    assert set(services) == {"gateway", "postgres", "valkey", "otel-collector", "prometheus"}


def test_what_ships_a_collector_says_where_it_stands():
    """Else no span would leave the gateway: no policy lets one go where nobody knows the country."""
    environment = compose()["services"]["gateway"]["environment"]
    assert environment["DOMICILE__SINKS__TELEMETRY"] == "${DOMICILE_COUNTRY}"
    for cell, country in CELLS.items():
        (gateway,) = [each for each in of_kind(cell, "StatefulSet") if each["metadata"]["name"] == "gateway"]
        (container,) = gateway["spec"]["template"]["spec"]["containers"]
        said = {each["name"]: each.get("value") for each in container["env"]}
        assert said["DOMICILE__SINKS__TELEMETRY"] == said["DOMICILE__SINKS__RECORD"] == country


def test_the_password_that_compose_says_to_make_fits_a_url_and_can_be_read_in_the_containers_alone(tmp_path):
    text = (DEPLOY / "compose" / "compose.yaml").read_text()
    (line,) = (line[1:].strip() for line in text.splitlines() if "/dev/urandom" in line)
    (tmp_path / "deploy" / "compose").mkdir(parents=True)
    assert run("sh", "-c", f"umask 022; {line}", cwd=tmp_path).returncode == 0
    folder = tmp_path / "deploy" / "compose" / "secrets"
    assert re.fullmatch("[0-9a-f]{48}", (folder / "postgres").read_text())
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "postgres").stat().st_mode & 0o004


def test_what_compose_configures_is_accepted(tmp_path):
    (tmp_path / "c.yaml").write_text(compose()["configs"]["gateway"]["content"])
    assert load_settings(tmp_path / "c.yaml").telemetry.sample_ratio == 0.1
    assert "DOMICILE_COUNTRY:?" in compose()["services"]["gateway"]["environment"]["DOMICILE__SINKS__RECORD"]


# --- units -----------------------------------------------------------------------------------------------------------


def unit(name):
    lines = (DEPLOY / "systemd" / name).read_text().replace("\\\n", " ").splitlines()
    return [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]


@pytest.mark.parametrize("name", ["domicile.service", "domicile-backend@.service"])
def test_a_unit_names_commands_and_options_that_exist(name):
    import typer

    for key, value in unit(name):
        if key in ("ExecStart", "ExecStartPre"):
            words = value.split()
            assert words[0] == "/opt/domicile/bin/domicile"
            command = typer.main.get_command(app)
            rest = words[1:]
            while rest and rest[0] in getattr(command, "commands", {}):
                command = command.commands[rest.pop(0)]
            options = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in rest if word.startswith("-")} <= options


def test_the_gateways_unit_sees_gpus_by_its_drop_in_alone():
    assert dict(unit("domicile.service"))["PrivateDevices"] == "yes"
    given = unit("domicile.service.d/gpus.conf")
    assert {key for key, _ in given} == {"PrivateDevices", "DevicePolicy", "DeviceAllow"}
    assert ["PrivateDevices", "no"] in given and ["DevicePolicy", "closed"] in given
    backend = [value for key, value in unit("domicile-backend@.service") if key == "DeviceAllow"]
    assert set(backend) <= {value for key, value in given if key == "DeviceAllow"}, "what a backend needs"


@pytest.mark.parametrize("name", ["domicile.service", "domicile-backend@.service"])
def test_a_unit_gives_no_more_than_it_needs(name):
    settings = dict(unit(name))
    assert settings["NoNewPrivileges"] == "yes" and settings["ProtectSystem"] == "strict"
    assert settings["CapabilityBoundingSet"] == "" and settings["LimitCORE"] == "0"
    assert settings["User"] != "root"


def test_the_gateways_unit_lets_the_state_of_the_clock_be_read_and_nothing_set_it():
    """The record has it from adjtimex, which glibc asks as clock_adjtime; ProtectClock would refuse both."""
    settings = unit("domicile.service")
    allowed = {name for key, value in settings if key == "SystemCallFilter" for name in value.split()}
    assert {"adjtimex", "clock_adjtime"} <= allowed and "ProtectClock" not in dict(settings)
    assert dict(settings)["CapabilityBoundingSet"] == "" and not any(name.startswith("~") for name in allowed)


def test_a_unit_reloads_where_there_is_no_kill_but_the_shells():
    reloads = [value for key, value in unit("domicile.service") if key == "ExecReload"]
    assert [value.split()[0] for value in reloads] == ["/opt/domicile/bin/domicile", "/bin/sh"]


# --- alerts and dashboard --------------------------------------------------------------------------------------------


def exported():
    """Names as Prometheus sees them."""
    names = set(METRICS)
    for name in METRICS:
        if name.endswith("_count"):
            names |= {name.removesuffix("_count") + end for end in ("_bucket", "_sum")}
    of_budgets = {metric.name for metric in Budgets(None, list).metrics(str)}
    of_duties = {"domicile_duties", "domicile_duties_known"}
    return names | of_a_backend() | of_budgets | of_duties | {"domicile_budgets_known", "up"}


def of_a_backend():
    """As a gateway tells them of one whose card tells all that there is to tell."""
    told = of_a_backend_text()
    assert {name for name, _ in (*GAUGES.values(), *GPU_METRICS.values())} <= set(
        re.findall(r"^[a-z_0-9]+", told, re.M)
    )
    known = backend()
    text = written(labelled([Labelled(known, LABELS)], {known.id: told.encode()}))
    return set(re.findall(r"^[a-z][a-z_0-9]*", text, re.MULTILINE))


def of_a_backend_text():
    meter = GpuMeter(lambda: Reading(1.0, 2.0, 0.5, 300.0), lambda: 1)
    meter.sample()
    counts = [name for name in Stats.__struct_fields__ if name not in ("expert_pairs", "draft_places")]
    numbers = {name: number for number, name in enumerate(counts)}
    stats = Stats(**numbers, expert_pairs=[1, 2], draft_places=[(3, 2)])
    metrics = Metrics("m", lambda: stats, lambda: True, meter=meter)
    for histogram in (metrics.time_to_first_token, metrics.time_per_output_token, metrics.request_duration):
        histogram.observe(1.0)
    metrics.count_run(0.0, 1.0, 2.0, 1)
    metrics.count_request("completed")
    return metrics.render().decode()


def asked(expression):
    bare = re.sub(r'"[^"]*"|by \([^)]*\)|\{[^}]*\}', " ", expression)
    return set(re.findall(r"\b(?:domicile|gen_ai)_[a-z_0-9]+\b", bare)) - {"gen_ai_request_model"}


def rules():
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_alerts_ask_for_metrics_that_there_are_and_point_into_the_runbook():
    headings = re.findall(r"^#+ (.+)$", (TREE / "docs" / "operations.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    for rule in rules():
        assert asked(rule["expr"]) <= exported(), rule
        if "alert" in rule:
            place, anchor = rule["annotations"]["runbook"].split("#")
            assert place == "docs/operations.md" and anchor in anchors, rule["alert"]


def test_errors_that_alerts_count_are_codes_of_the_gateway():
    from tests.test_docs import codes_in_source

    for rule in rules():
        for match in re.findall(r'\bcode=~?"([^"]+)"', rule["expr"]):
            assert set(match.split("|")) <= codes_in_source() | {"limits_unavailable", "audit_unavailable"}


def test_what_is_recorded_is_what_alerts_and_panels_ask_for():
    """A name with a colon is a rule's own: nobody else exports it."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    board = json.loads((DEPLOY / "grafana" / "domicile.json").read_text())
    expressions = [rule["expr"] for rule in rules()]
    expressions += [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    used = {name for expression in expressions for name in re.findall(r"\bdomicile:[a-z0-9_:]+", expression)}
    assert used == recorded


@pytest.mark.parametrize("name", sorted(name for name, _ in (*GAUGES.values(), *GPU_METRICS.values())))
def test_all_that_a_backend_tells_of_itself_is_on_the_dashboard(name):
    assert name in (DEPLOY / "grafana" / "domicile.json").read_text()


def test_promtool_accepts_the_rules_and_their_tests_pass():
    if not shutil.which("promtool"):
        missing("no promtool: install Debian's prometheus, which `.ci/run` does")
    said = run("promtool", "check", "rules", "rules.yaml", cwd=DEPLOY / "prometheus")
    assert said.returncode == 0, said.stderr
    said = run("promtool", "test", "rules", "rules_test.yaml", cwd=DEPLOY / "prometheus")
    assert said.returncode == 0, said.stdout + said.stderr


def test_the_dashboard_asks_for_metrics_that_there_are_and_its_panels_do_not_overlap():
    board = json.loads((DEPLOY / "grafana" / "domicile.json").read_text())
    taken = set()
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            assert asked(target["expr"]) <= exported(), panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


# --- licences --------------------------------------------------------------------------------------------------------


def test_licences_are_listed_and_a_component_without_one_ends_with_1(tmp_path):
    parts = [
        {"name": "a", "version": "1", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "b", "version": "2", "licenses": [{"expression": "Apache-2.0 OR MIT"}]},
        {"name": "c", "licenses": [{"license": {"name": "License :: OSI Approved :: BSD License"}}]},
    ]
    sbom, out = tmp_path / "sbom.json", tmp_path / "out.csv"
    sbom.write_text(json.dumps({"components": parts}))
    assert "3 components in " in (said := run(sys.executable, DEPLOY / "licences.py", sbom, out)).stdout
    assert said.returncode == 0 and said.stdout.endswith(", without PyTorch\n")
    assert out.read_text().splitlines()[1:] == ["a,1,MIT", "b,2,Apache-2.0 OR MIT", "c,,BSD License"]
    sbom.write_text(json.dumps({"components": [*parts, {"name": "silent", "version": "3"}]}))
    said = run(sys.executable, DEPLOY / "licences.py", sbom, out)
    assert said.returncode == 1 and "silent" in said.stderr
    mit = {"licenses": [{"license": {"id": "MIT"}}]}
    for more, which in (((), "for CPUs"), (({"name": "nvidia-cublas", "version": "13", **mit},), "with CUDA")):
        sbom.write_text(json.dumps({"components": [{"name": "torch", "version": "2.13.0", **mit}, *more]}))
        said = run(sys.executable, DEPLOY / "licences.py", sbom, out)
        assert said.stdout.endswith(f", with PyTorch 2.13.0, the build {which}\n")
