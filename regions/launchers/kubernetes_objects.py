"""What one backend is in Kubernetes: five objects, made from a spec by functions without effects.

They enforce isolation themselves: nodes reserved for the tenant (label and taint ``domicile.eu/tenant``), a
NetworkPolicy that lets the gateways in and nothing out, no service account token, restricted pod security, and the
certificate of this one backend. Shapes: Kubernetes API apps/v1, v1, networking.k8s.io/v1, policy/v1.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regions.fleet.fleet import Role
from regions.fleet.launcher import BackendSpec
from regions.identity.identity import BackendIdentity, GatewayIdentity

Object = dict[str, Any]

PORT = 8443
TRANSFER_PORT = 8444  # where a backend that computes prompts for others sends their keys and values
PREFIX = "backend-"
TENANT = "domicile.eu/tenant"
ROLE = "domicile.eu/role"  # label, of backends that are not mixed
MODEL = "domicile.eu/model"  # annotation: the name that the model is asked for by
REQUEST_KEY = "requests.pem"
MANAGER = "domicile"
GRACE_S = 45  # longer than a backend's own drain of 30 s
HEARTBEAT = "/run/domicile/heartbeat"
MODELS = "/models"
IDENTITY = "/run/identity"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What is the same for every backend of a cell.

    Attributes:
        image: of deploy/Dockerfile.backend.
        models: the claim whose volume holds the models, mounted read-only at ``/models``.
        kernels: the claim for compiled kernels, so that a restart compiles nothing; without one they die with the pod.
        runtime_class: for nodes that start GPU containers by one.
        gateways: labels of the pods that may connect, in `gateway_namespace`.
        surge: a new pod before the old one goes. It needs a free GPU; without it an update has a gap, in which the
            gateway takes another replica or parks the request.
    """

    namespace: str = "domicile-backends"
    image: str = "domicile-backend:0.1.0"
    models: str = "models"
    kernels: str | None = None
    runtime_class: str | None = None
    gateway_namespace: str = "domicile"
    gateways: dict[str, str] = field(default_factory=lambda: {"app.kubernetes.io/name": "domicile-gateway"})
    cpu: str = "4"
    memory: str = "32Gi"
    shared_memory: str = "8Gi"
    surge: bool = True


def object_name(backend_id: str) -> str:
    return PREFIX + backend_id


def url(backend_id: str, settings: ClusterSettings) -> str:
    return f"https://{object_name(backend_id)}.{settings.namespace}.svc:{PORT}"


def objects(spec: BackendSpec, identity_files: dict[str, bytes], settings: ClusterSettings) -> list[Object]:
    """In the order in which they are to be applied: what a pod needs before the pod.

    identity_files: ``cert.pem``, ``key.pem`` and ``ca.pem``; with ``requests.pem``, only calls with a token that this
    key verifies are answered.
    """
    return [
        secret(spec.identity, identity_files, settings),
        network_policy(spec, settings),
        service(spec, settings),
        disruption_budget(spec, settings),
        deployment(spec, settings, locked=REQUEST_KEY in identity_files),
    ]


def labels(identity: BackendIdentity, role: Role = "mixed") -> dict[str, str]:
    own = {} if role == "mixed" else {ROLE: role}
    return own | {
        "app.kubernetes.io/name": "domicile-backend",
        "app.kubernetes.io/managed-by": MANAGER,
        "domicile.eu/cell": identity.cell,
        "domicile.eu/tenant": identity.tenant,
        "domicile.eu/region": identity.region,
        "domicile.eu/backend": identity.backend,
    }


def role_of(known: Mapping[str, str]) -> Role:
    """By the labels of an object of a backend."""
    found = known.get(ROLE)
    return "prefill" if found == "prefill" else "decode" if found == "decode" else "mixed"


def secret(identity: BackendIdentity, identity_files: dict[str, bytes], settings: ClusterSettings) -> Object:
    data = {name: b64encode(content).decode() for name, content in identity_files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(identity, settings),
        "type": "Opaque",
        "data": data,
    }


def service(spec: BackendSpec, settings: ClusterSettings) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec.identity, settings),
        "spec": {
            "selector": _selector(spec),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                for name, port in _ports(spec).items()
            ],
        },
    }


def network_policy(spec: BackendSpec, settings: ClusterSettings) -> Object:
    """In: this cell's gateways. Out: nothing, DNS included; a backend calls no other host.

    Of a pair for prefill and decode, those that answer reach the transfer port of those of their tenant that compute
    prompts, and no other client does; by the address of a Service, so that no DNS is needed.
    """
    ingress = [{"from": [_gateways(settings)], "ports": [{"protocol": "TCP", "port": PORT}]}]
    egress: list[Object] = []
    transfer = [{"protocol": "TCP", "port": TRANSFER_PORT}]
    if spec.role == "prefill":
        ingress.append({"from": [_of_tenant(spec, "decode")], "ports": transfer})
    if spec.role == "decode":
        egress.append({"to": [_of_tenant(spec, "prefill")], "ports": transfer})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(spec.identity, settings),
        "spec": {
            "podSelector": {"matchLabels": _selector(spec)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _of_tenant(spec: BackendSpec, role: Role) -> Object:
    """Pods of this namespace that are backends of the same cell and tenant with that role."""
    known = labels(spec.identity, role)
    return {"podSelector": {"matchLabels": {name: known[name] for name in ("domicile.eu/cell", TENANT, ROLE)}}}


def _gateways(settings: ClusterSettings) -> Object:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.gateway_namespace}},
        "podSelector": {"matchLabels": settings.gateways},
    }


def disruption_budget(spec: BackendSpec, settings: ClusterSettings) -> Object:
    """A node is not drained under a running answer: drain the backend first, then its budget has nothing to keep."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(spec.identity, settings),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": _selector(spec)}},
    }


def deployment(spec: BackendSpec, settings: ClusterSettings, *, locked: bool = False) -> Object:
    rolling = {"maxSurge": 1, "maxUnavailable": 0} if settings.surge else {"maxSurge": 0, "maxUnavailable": 1}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(spec.identity, settings, spec.role) | {"annotations": {MODEL: spec.served_name}},
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": 900,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "selector": {"matchLabels": _selector(spec)},
            "template": {
                "metadata": {"labels": labels(spec.identity, spec.role)},
                "spec": _pod(spec, settings, locked),
            },
        },
    }


def _pod(spec: BackendSpec, settings: ClusterSettings, locked: bool) -> Object:
    tenant = spec.identity.tenant
    kernels: Object = {"emptyDir": {"sizeLimit": "4Gi"}}
    if settings.kernels is not None:
        kernels = {"persistentVolumeClaim": {"claimName": settings.kernels}}
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S + 10,
        "nodeSelector": {"domicile.eu/tenant": tenant, "domicile.eu/region": spec.identity.region},
        "tolerations": [
            {"key": "domicile.eu/tenant", "operator": "Equal", "value": tenant, "effect": "NoSchedule"},
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        ],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec, settings, locked)],
        "volumes": [
            # 0440 for the group above; the process reads the files again when kubelet has renewed them.
            {"name": "identity", "secret": {"secretName": object_name(spec.identity.backend), "defaultMode": 0o440}},
            {"name": "models", "persistentVolumeClaim": {"claimName": settings.models, "readOnly": True}},
            {"name": "kernels", **kernels},
            {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shared_memory}},
        ],
    }
    if spec.card is not None and spec.card != "cpu":
        pod["nodeSelector"]["domicile.eu/gpu"] = spec.card
    if settings.runtime_class is not None:
        pod["runtimeClassName"] = settings.runtime_class
    return pod


def _container(spec: BackendSpec, settings: ClusterSettings, locked: bool) -> Object:
    gpus = gpu_count(spec)
    limits = {"memory": settings.memory} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "name": "backend",
        "image": settings.image,
        "args": arguments(spec, locked=locked),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in _ports(spec).items()],
        # A model takes its time to load; then a silent engine loop is noticed within seconds, and ended after a minute.
        "startupProbe": {"exec": _fresh(60), "periodSeconds": 2, "failureThreshold": 450},
        "readinessProbe": {"exec": _fresh(12), "periodSeconds": 3, "failureThreshold": 1},
        "livenessProbe": {"exec": _fresh(60), "periodSeconds": 15, "failureThreshold": 2},
        # A Service forgets a pod some seconds after the pod began to stop; until then calls still arrive.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "8"]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": {"cpu": settings.cpu, "memory": settings.memory}, "limits": limits},
        "volumeMounts": [
            {"name": "identity", "mountPath": IDENTITY, "readOnly": True},
            {"name": "models", "mountPath": MODELS, "readOnly": True},
            {"name": "kernels", "mountPath": "/var/cache/domicile"},
            {"name": "run", "mountPath": "/run/domicile"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # the container's own, in memory of the node
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # engine processes share tensors there
        ],
    }


def arguments(spec: BackendSpec, *, locked: bool = False) -> list[str]:
    """Arguments of ``domicile backend serve`` in the container."""
    identity = spec.identity
    command = ["--model", f"{MODELS}/{spec.model.name}", "--served-name", spec.served_name]
    command += ["--host", "0.0.0.0", "--port", str(PORT), "--heartbeat", HEARTBEAT]  # noqa: S104  # mutual TLS below
    command += ["--cert", f"{IDENTITY}/cert.pem", "--key", f"{IDENTITY}/key.pem", "--ca", f"{IDENTITY}/ca.pem"]
    command += ["--request-key", f"{IDENTITY}/{REQUEST_KEY}"] if locked else []
    command += ["--peer-uri", GatewayIdentity(identity.cell, identity.tenant).uri]
    command += ["--tenant", identity.tenant, "--region", identity.region, "--backend-id", identity.backend]
    if gpu_count(spec) and "--device" not in spec.options:
        command += ["--device", "cuda"]
    if spec.role != "mixed":
        command += ["--role", spec.role]
    command += ["--transfer-port", str(TRANSFER_PORT)] if spec.role == "prefill" else []
    if spec.threads is not None:
        command += ["--threads", str(spec.threads)]
    draft = "" if spec.draft is None else f"{MODELS}/{spec.draft.name}"
    return [*command, *spec.guessing(draft), *spec.options]


def gpu_count(spec: BackendSpec) -> int:
    """GPUs of one pod: as many as devices are named; where a card is named and no device, as many as are asked for."""
    return len(spec.gpus) or (spec.cards if spec.card is not None and spec.card != "cpu" else 0)


def _ports(spec: BackendSpec) -> dict[str, int]:
    """By name."""
    return {"https": PORT} | ({"transfer": TRANSFER_PORT} if spec.role == "prefill" else {})


def _fresh(seconds: int) -> Object:
    """A probe: the heartbeat is younger than `seconds`. `find` counts in minutes, with fractions."""
    look = f'test -n "$(find {HEARTBEAT} -mmin -{seconds / 60:g} 2>/dev/null)"'
    return {"command": ["/bin/sh", "-c", look]}


def _metadata(identity: BackendIdentity, settings: ClusterSettings, role: Role = "mixed") -> Object:
    return {
        "name": object_name(identity.backend),
        "namespace": settings.namespace,
        "labels": labels(identity, role),
    }


def _selector(spec: BackendSpec) -> dict[str, str]:
    """Selector of labels that never change, as a Deployment's selector must."""
    return {"domicile.eu/tenant": spec.identity.tenant, "domicile.eu/backend": spec.identity.backend}
