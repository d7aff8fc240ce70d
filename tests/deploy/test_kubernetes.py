"""The manifests of a cell: valid, locked down, and all of it in one country."""

import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import yaml

from audit.files.secret_file import LoosePermissions, read_secret
from tests.fakes.kubernetes import VERSIONS, check

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
CELLS = {"eu-fr": "FR", "eu-de": "DE"}

PLAIN = (
    "POSTGRES_USER",
    "POSTGRES_DB",
    "PGDATA",
    "DOMICILE__SINKS__RECORD",
    "DOMICILE__SINKS__TELEMETRY",
    "DOMICILE_CONFIG",
)


def rendered(cell):
    return list(yaml.safe_load_all((FOLDER / "rendered" / f"{cell}.yaml").read_text()))


def of_kind(cell, *kinds):
    return [each for each in rendered(cell) if each["kind"] in kinds]


def pods(cell):
    return [each["spec"]["template"]["spec"] for each in of_kind(cell, "Deployment", "StatefulSet")]


def containers(cell):
    return [c for pod in pods(cell) for c in (*pod.get("initContainers", ()), *pod["containers"])]


@pytest.mark.parametrize("cell", CELLS)
def test_what_is_committed_is_what_kustomize_makes(cell):
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl: the committed files are tested, that they are current is not")
    made = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / "overlays" / cell)], capture_output=True, text=True, check=True
    )
    assert list(yaml.safe_load_all(made.stdout)) == rendered(cell)


@pytest.mark.parametrize("cell", CELLS)
def test_every_object_is_valid_under_the_published_schemas(cell):
    assert len(rendered(cell)) > 20
    for each in rendered(cell):
        check(each)


@pytest.mark.parametrize(("cell", "country"), CELLS.items())
def test_every_pod_and_with_it_its_volume_stays_in_the_country(cell, country):
    assert len(pods(cell)) == 4
    for pod in pods(cell):
        assert pod["nodeSelector"] == {"domicile.eu/country": country}


@pytest.mark.parametrize("cell", CELLS)
def test_every_container_is_restricted(cell):
    for pod in pods(cell):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(cell):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }, container["name"]  # fmt: skip
        assert container["resources"]["limits"]["memory"], container["name"]


@pytest.mark.parametrize("cell", CELLS)
def test_no_secret_stands_in_a_manifest_and_no_password_in_an_argument(cell):
    assert of_kind(cell, "Secret") == []
    for container in containers(cell):
        for variable in container.get("env", ()):
            assert "value" not in variable or variable["name"] in PLAIN


@pytest.mark.parametrize("cell", CELLS)
def test_a_gateway_may_write_nothing_but_backends_objects_in_their_namespace(cell):
    assert of_kind(cell, "ClusterRole", "ClusterRoleBinding") == []
    (role,) = of_kind(cell, "Role")
    assert role["metadata"]["namespace"] == "domicile-backends"
    assert not any("*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"]) for rule in role["rules"])
    granted = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert not granted & {"pods", "pods/exec", "nodes", "serviceaccounts", "roles", "configmaps"}


@pytest.mark.parametrize("cell", CELLS)
def test_both_namespaces_deny_what_no_policy_allows(cell):
    policies = {(p["metadata"]["namespace"], p["metadata"]["name"]): p["spec"] for p in of_kind(cell, "NetworkPolicy")}
    for namespace in ("domicile", "domicile-backends"):
        assert policies[namespace, "default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name in ("postgres", "valkey", "otel-collector"):
        (rule,) = policies["domicile", name]["ingress"]
        assert rule["from"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "domicile-gateway"}}}]
        assert "egress" not in policies["domicile", name]


@pytest.mark.parametrize("cell", CELLS)
def test_the_gateway_s_configuration_is_one_that_it_accepts(cell, tmp_path):
    from gateway.configuration.settings import load_settings

    (config,) = [each for each in of_kind(cell, "ConfigMap") if each["metadata"]["name"].startswith("gateway")]
    file = tmp_path / "config.yaml"
    file.write_text(config["data"]["config.yaml"])
    settings = load_settings(file)
    assert settings.listen.port == 8443 and settings.listen.cert_file == Path("/run/tls/tls.crt")


def test_two_gateways_are_replaced_one_after_the_other_and_keep_their_names():
    (gateway,) = [each for each in of_kind("eu-fr", "StatefulSet") if each["metadata"]["name"] == "gateway"]
    assert gateway["spec"]["replicas"] == 2
    (container,) = gateway["spec"]["template"]["spec"]["containers"]
    named = {each["name"]: each["valueFrom"] for each in container["env"] if "valueFrom" in each}
    assert named["DOMICILE__NODE"] == {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}} or named[
        "DOMICILE__NODE"
    ] == {"fieldRef": {"fieldPath": "metadata.name"}}
    probes = {name: container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_the_page_names_the_versions_whose_schemas_are_checked():
    page = (FOLDER.parents[1] / "docs" / "operations.md").read_text()
    assert f"Kubernetes {VERSIONS[0]} or newer" in page
    assert f"of {VERSIONS[0]}, {VERSIONS[1]} and {VERSIONS[2]}" in " ".join(page.split())


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_has_schemas_of_its_own_that_refuse_a_field_that_there_is_not(version):
    import kubernetes_validate

    (broken,) = [each for each in of_kind("eu-fr", "StatefulSet") if each["metadata"]["name"] == "gateway"]
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with warnings.catch_warnings(), pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        warnings.simplefilter("ignore")
        kubernetes_validate.validate(broken, version, strict=True)


def test_with_every_component_a_cell_is_valid_too(tmp_path):
    """The component `outside`, which no overlay names, in an overlay as docs/operations.md shows it."""
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl: the component is tested as it stands, and not in an overlay")
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "overlays" / "eu-fr" / "kustomization.yaml"
    named = yaml.safe_load(overlay.read_text())
    named["components"].append("../../components/outside")
    overlay.write_text(yaml.safe_dump(named))
    made = subprocess.run(["kubectl", "kustomize", str(overlay.parent)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    objects = list(yaml.safe_load_all(made.stdout))
    assert len(objects) == len(rendered("eu-fr")) + 1
    (policy,) = [each for each in objects if each["metadata"]["name"] == "gateway-outside"]
    (gateway,) = [p for p in of_kind("eu-fr", "NetworkPolicy") if p["metadata"]["name"] == "gateway"]
    check(policy)
    assert policy["spec"]["podSelector"] == gateway["spec"]["podSelector"], "it opens something for gateways"
    assert policy["metadata"]["namespace"] == gateway["metadata"]["namespace"]


def test_what_stands_beside_the_manifests_names_what_is_in_them():
    """Of the example for KEDA, whose schemas Kubernetes does not publish, and of Prometheus inside the cluster."""
    scaled = yaml.safe_load((FOLDER / "examples" / "scaledobject.yaml").read_text())
    target, namespace_of = scaled["spec"]["scaleTargetRef"], scaled["metadata"]["namespace"]
    for cell in CELLS:
        known = {
            (e["apiVersion"], e["kind"], e["metadata"]["name"], e["metadata"]["namespace"])
            for e in of_kind(cell, "StatefulSet", "Service")
        }
        assert (target["apiVersion"], target["kind"], target["name"], namespace_of) in known
        scrape = yaml.safe_load((FOLDER.parent / "prometheus" / "kubernetes.yaml").read_text())
        for job in scrape["scrape_configs"]:
            for place in job["dns_sd_configs"]:
                service, namespace = place["names"][0].split(".")[:2]
                (found,) = [
                    each
                    for each in of_kind(cell, "Service")
                    if (each["metadata"]["name"], each["metadata"]["namespace"]) == (service, namespace)
                ]
                assert place["port"] in [port["port"] for port in found["spec"]["ports"]]
                assert found["spec"]["clusterIP"] == "None", "a name of each pod, not of all"


def test_a_manifest_with_a_mistake_is_found():
    import kubernetes_validate

    broken = of_kind("eu-fr", "StatefulSet")[0]
    broken["spec"]["replicas"] = "two"
    with warnings.catch_warnings(), pytest.raises(kubernetes_validate.ValidationError):
        warnings.simplefilter("ignore")
        check(broken)


@pytest.mark.parametrize(("cell", "country"), CELLS.items())
def test_the_record_is_said_to_be_where_its_nodes_stand(cell, country):
    (gateway,) = [each for each in of_kind(cell, "StatefulSet") if each["metadata"]["name"] == "gateway"]
    pod = gateway["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"domicile.eu/country": country}
    assert {"name": "DOMICILE__SINKS__RECORD", "value": country} in pod["containers"][0]["env"]


def test_secrets_are_mounted_as_kubelet_does_and_read_as_the_gateway_demands(tmp_path):
    """The init container's command, run on a volume as kubelet makes it: links, and files that a group may read."""
    (gateway,) = [each for each in of_kind("eu-fr", "StatefulSet") if each["metadata"]["name"] == "gateway"]
    pod = gateway["spec"]["template"]["spec"]
    (copying,) = [each for each in pod["initContainers"] if each["name"] == "secrets"]
    mounted, copied = tmp_path / "mounted", tmp_path / "copied"
    (mounted / "..2026_11_30").mkdir(parents=True)
    copied.mkdir()
    (mounted / "..data").symlink_to("..2026_11_30")

    def copy():
        script = copying["command"][-1].replace("/run/mounted", str(mounted)).replace("/run/domicile", str(copied))
        subprocess.run([*copying["command"][:-1], script], check=True)

    copy()
    assert list(copied.iterdir()) == [], "without a Secret there is nothing to copy, and that is no fault"
    (mounted / "..2026_11_30" / "oidc-secret").write_bytes(b"s3cret")
    (mounted / "..2026_11_30" / "oidc-secret").chmod(0o440)
    (mounted / "oidc-secret").symlink_to("..data/oidc-secret")
    with pytest.raises(LoosePermissions):
        read_secret(mounted / "oidc-secret")
    copy()
    assert read_secret(copied / "oidc-secret") == b"s3cret"
    assert [file.name for file in copied.iterdir()] == ["oidc-secret"]

    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    places = {place["mountPath"]: place for place in pod["containers"][0]["volumeMounts"]}
    assert volumes[places["/run/domicile"]["name"]]["emptyDir"]["medium"] == "Memory"
    assert places["/run/domicile"]["readOnly"] is True
    assert "/run/mounted" not in places, "the gateway itself sees only its own copies"


def test_what_gateways_ask_outside_is_opened_by_a_component_and_by_nothing_else():
    (policy,) = yaml.safe_load_all((FOLDER / "components" / "outside" / "outside.yaml").read_text())
    check(policy)
    for rule in policy["spec"]["egress"]:
        assert all("ipBlock" in to for to in rule["to"]) and rule["ports"]
    ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert ports == {443, 8200}
    for cell in CELLS:
        (gateway,) = [p for p in of_kind(cell, "NetworkPolicy") if p["metadata"]["name"] == "gateway"]
        assert not any("ipBlock" in to for rule in gateway["spec"]["egress"] for to in rule.get("to", ()))
        assert not [p for p in of_kind(cell, "NetworkPolicy") if p["metadata"]["name"] == "gateway-outside"]
