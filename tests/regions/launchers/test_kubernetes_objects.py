"""A backend's objects: of the published shapes, and what of them keeps tenants apart."""

from base64 import b64decode
from pathlib import Path

import kubernetes_validate
import pytest

from regions.fleet.launcher import BackendSpec
from regions.identity.identity import BackendIdentity
from regions.launchers.kubernetes_objects import ClusterSettings, objects
from tests.fakes.kubernetes import check

FILES = {"cert.pem": b"certificate", "key.pem": b"key", "ca.pem": b"root"}


def spec(**more):
    identity = BackendIdentity("eu-fr", "acme", "eu-fr-par", "acme-1")
    return BackendSpec(identity, Path("/somewhere/llama-8b"), "llama", **more)


def made(settings=None, **more):
    return {each["kind"]: each for each in objects(spec(**more), FILES, settings or ClusterSettings())}


def pod(found):
    return found["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "found",
    [
        made(),
        made(card="h100"),
        made(gpus=(0, 1, 2, 3), threads=8, options=("--quantization", "fp8")),
        made(ClusterSettings(kernels="kernels", runtime_class="nvidia", surge=False)),
        made(role="prefill", card="h100", cards=2),
        made(role="decode", card="h100", cards=2),
    ],
)
def test_every_object_is_valid_under_the_published_schemas(found):
    assert list(found) == ["Secret", "NetworkPolicy", "Service", "PodDisruptionBudget", "Deployment"]
    for each in found.values():
        check(each)
        assert each["metadata"]["namespace"] == "domicile-backends"
        assert each["metadata"]["labels"]["domicile.eu/tenant"] == "acme"


def test_the_schemas_refuse_what_an_api_server_would():
    found = made()["Deployment"]
    found["spec"]["replicas"] = "two"
    with pytest.raises(kubernetes_validate.ValidationError):
        check(found)
    found = made()["Deployment"]
    found["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        check(found)


def test_it_runs_on_its_tenants_nodes_alone():
    asked = pod(made(card="h100"))
    assert asked["nodeSelector"] == {
        "domicile.eu/tenant": "acme", "domicile.eu/region": "eu-fr-par", "domicile.eu/gpu": "h100",
    }  # fmt: skip
    tolerated = [each for each in asked["tolerations"] if each["key"] == "domicile.eu/tenant"]
    assert tolerated == [{"key": "domicile.eu/tenant", "operator": "Equal", "value": "acme", "effect": "NoSchedule"}]


def test_only_the_gateways_get_in_and_nothing_gets_out():
    rules = made()["NetworkPolicy"]["spec"]
    assert rules["policyTypes"] == ["Ingress", "Egress"] and rules["egress"] == []
    ((only,),) = [rule["from"] for rule in rules["ingress"]]
    assert only["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "domicile"}}
    assert only["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "domicile-gateway"}}
    assert rules["podSelector"]["matchLabels"] == made()["Deployment"]["spec"]["selector"]["matchLabels"]


def chosen(rule, labels):
    return rule["podSelector"]["matchLabels"].items() <= labels.items()


def test_of_a_pair_one_is_reached_on_its_second_port_by_the_other_of_its_tenant_alone():
    prefill, decode = made(role="prefill"), made(role="decode")
    rules = prefill["NetworkPolicy"]["spec"]
    assert rules["egress"] == [] and len(rules["ingress"]) == 2
    gateways, others = rules["ingress"]
    assert gateways["ports"] == [{"protocol": "TCP", "port": 8443}]
    assert others["ports"] == [{"protocol": "TCP", "port": 8444}]
    ((who,), (whom,)) = others["from"], decode["NetworkPolicy"]["spec"]["egress"][0]["to"]
    assert set(who) == set(whom) == {"podSelector"}  # pods of this namespace
    labels = {
        role: found["Deployment"]["spec"]["template"]["metadata"]["labels"]
        for role, found in (("prefill", prefill), ("decode", decode), ("mixed", made()))
    }
    assert [role for role, known in labels.items() if chosen(who, known)] == ["decode"]
    assert [role for role, known in labels.items() if chosen(whom, known)] == ["prefill"]
    for other in ({"domicile.eu/tenant": "globex"}, {"domicile.eu/cell": "eu-de"}):
        assert not chosen(who, labels["decode"] | other) and not chosen(whom, labels["prefill"] | other)
    (out,) = decode["NetworkPolicy"]["spec"]["egress"]
    assert out["ports"] == [{"protocol": "TCP", "port": 8444}]
    assert len(decode["NetworkPolicy"]["spec"]["ingress"]) == 1


def test_of_a_pair_each_has_its_role_its_ports_and_its_gpus():
    ports = {}
    for role, port in (("prefill", ["--transfer-port", "8444"]), ("decode", [])):
        found = made(role=role, card="h100", cards=2, options=("--tensor-parallel-size", "2"))
        (container,) = pod(found)["containers"]
        arguments = container["args"]
        at = arguments.index("--role")
        assert arguments[at : at + 2 + len(port)] == ["--role", role, *port]
        assert "--transfer-memory" not in arguments  # pods share no memory
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
        assert found["Deployment"]["metadata"]["labels"]["domicile.eu/role"] == role
        assert "domicile.eu/role" not in found["Deployment"]["spec"]["selector"]["matchLabels"]
        ports[role] = [each["port"] for each in found["Service"]["spec"]["ports"]]
        assert ports[role] == [each["containerPort"] for each in container["ports"]]
    assert ports == {"prefill": [8443, 8444], "decode": [8443]}
    (container,) = pod(made())["containers"]
    assert "--role" not in container["args"] and "domicile.eu/role" not in made()["Deployment"]["metadata"]["labels"]


def test_its_pod_is_restricted_and_has_no_account():
    asked = pod(made())
    (container,) = asked["containers"]
    assert asked["automountServiceAccountToken"] is False
    assert asked["securityContext"]["runAsNonRoot"] and asked["securityContext"]["seccompProfile"] == {
        "type": "RuntimeDefault"
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    written = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert written == {"/var/cache/domicile", "/run/domicile", "/tmp", "/dev/shm"}


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({}, None), ({"card": "cpu"}, None), ({"card": "h100"}, "1"), ({"gpus": (0, 1, 2, 3)}, "4"),
        ({"card": "h100", "cards": 4, "options": ("--tensor-parallel-size", "4")}, "4"),
    ],
)  # fmt: skip
def test_it_gets_as_many_gpus_as_it_is_to_have(asked, gpus):
    (container,) = pod(made(**asked))["containers"]
    assert container["resources"]["limits"].get("nvidia.com/gpu") == gpus
    assert ("cuda" in container["args"]) is (gpus is not None)


def test_its_certificate_is_in_a_secret_and_its_one_peer_in_its_arguments():
    found = made()
    assert {name: b64decode(value) for name, value in found["Secret"]["data"].items()} == FILES
    (container,) = pod(found)["containers"]
    arguments = " ".join(container["args"])
    assert "--peer-uri spiffe://domicile.eu-fr/tenant/acme/gateway" in arguments
    assert "--model /models/llama-8b --served-name llama" in arguments
    assert b"key" not in str(found["Deployment"]).encode().replace(b"key.pem", b"").replace(b"'key'", b"").replace(
        b"--key", b""
    )


def test_a_smaller_model_is_looked_for_beside_the_one_that_it_guesses_for():
    (container,) = pod(made(draft=Path("/somewhere/llama-1b")))["containers"]
    assert "--speculation model --draft-model /models/llama-1b" in " ".join(container["args"])
    (container,) = pod(made(draft=Path("/somewhere/llama-eagle3"), speculation="eagle3"))["containers"]
    assert "--speculation eagle3 --draft-model /models/llama-eagle3" in " ".join(container["args"])
    (container,) = pod(made(speculation="mtp"))["containers"]
    assert "--speculation mtp" in " ".join(container["args"])
    assert "--draft-model" not in container["args"]
    (container,) = pod(made())["containers"]
    assert "--speculation" not in container["args"]


def test_an_update_keeps_the_old_pod_until_the_new_is_ready_unless_there_is_no_second_gpu():
    assert made()["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    gap = made(ClusterSettings(surge=False))["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert gap == {"maxSurge": 0, "maxUnavailable": 1}


def test_readiness_is_a_fresh_heartbeat_of_the_engine_loop(tmp_path):
    """The very command of the probe, run by a shell."""
    import os
    import subprocess

    (container,) = pod(made())["containers"]
    shell, flag, command = container["readinessProbe"]["exec"]["command"]
    beat = tmp_path / "heartbeat"
    command = command.replace("/run/domicile/heartbeat", str(beat))

    def ready():
        return subprocess.run([shell, flag, command], check=False).returncode == 0

    assert not ready()
    beat.touch()
    assert ready()
    os.utime(beat, (beat.stat().st_mtime - 30, beat.stat().st_mtime - 30))
    assert not ready()
