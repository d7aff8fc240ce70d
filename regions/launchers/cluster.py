"""The part of Kubernetes' API that a launcher needs: apply, read, scale and delete, over HTTPS with the pod's token.

Server-side apply (Kubernetes, API concepts): a whole object is sent as it should be, whether it is there or not, under
the field manager ``domicile``; what others set (a defaulted field, a scale) stays theirs.
"""

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from audit.external_service import Breaker, ExternalAnswer, ExternalService, ExternalUnavailable
from regions.errors import ClusterError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 15.0
MAX_ANSWER = 64 << 20
"""A page of 500 objects."""
ATTEMPTS = 4
FIRST_PAUSE_S = 0.25
APPLY = {"fieldManager": "domicile", "force": "true"}

COLLECTIONS: Mapping[str, tuple[str, str]] = {
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
}


class Cluster:
    """One namespace of one API server. An async context manager."""

    def __init__(self, server: str, namespace: str, *, token_file: Path, ca_file: Path) -> None:
        """`token_file` is read for each call: kubelet replaces it every hour. Raises ClusterError for an unread CA."""
        if not server.startswith("https://"):
            raise ClusterError(
                f"the address {server} is not https, so the token would be sent in clear; give an https address"
            )
        self._namespace = namespace
        self._token_file = token_file
        try:
            tls = ssl.create_default_context(cafile=str(ca_file))
        except (OSError, ssl.SSLError) as error:
            raise ClusterError(
                f"the cluster's CA {ca_file} cannot be read: {error}; mount the service account into the gateway's pod"
            ) from error
        self._server = server.rstrip("/")
        self._service = ExternalService(
            "the Kubernetes API",
            deadline_s=TIMEOUT_S,
            max_bytes=MAX_ANSWER,
            tls=tls,
            breaker=Breaker(failures=3 * ATTEMPTS, pause_s=2, longest_s=10),
        )

    @classmethod
    def of_this_pod(cls, namespace: str, account: Path = ACCOUNT) -> Self:
        """From what Kubernetes mounts into a pod. Raises ClusterError outside of one."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").exists():
            raise ClusterError(
                "this is not a pod of a cluster, or it has no service account token; run it in a cluster, or set"
                " fleet.launcher to local"
            )
        bracketed = f"[{host}]" if ":" in host else host
        return cls(f"https://{bracketed}:{port}", namespace, token_file=account / "token", ca_file=account / "ca.crt")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._service.aclose()

    async def apply(self, object: Mapping[str, Any]) -> dict[str, Any]:
        """Make it so; returns the object as it is now. Raises ClusterError."""
        path = self._path(object["kind"], object["metadata"]["name"])
        content = json.dumps(object).encode()  # JSON is YAML, and no YAML can be misread
        found = await self._call("PATCH", path, content, "application/apply-patch+yaml", APPLY)
        assert found is not None  # noqa: S101  # an apply makes what is not there
        return found

    async def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """None if it is not there. Raises ClusterError."""
        return await self._call("GET", self._path(kind, name))

    async def list(self, kind: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Those with all of `labels`. Raises ClusterError."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found: list[dict[str, Any]] = []
        query = {"labelSelector": selector, "limit": "500"}
        while True:
            page = await self._call("GET", self._path(kind), query=query)
            if page is None:
                return found
            found += page["items"]
            more = page.get("metadata", {}).get("continue")
            if not more:
                return found
            query = {**query, "continue": more}

    async def scale(self, name: str, replicas: int) -> None:
        """Scale a Deployment through its scale sub-resource. Raises ClusterError, also if it is not there."""
        content = json.dumps({"spec": {"replicas": replicas}}).encode()
        path = f"{self._path('Deployment', name)}/scale"
        if await self._call("PATCH", path, content, "application/merge-patch+json") is None:
            raise ClusterError(
                f"there is no Deployment {name} in {self._namespace}"
                "; apply the manifests of deploy/ first, or correct the name"
            )

    async def delete(self, kind: str, name: str) -> None:
        """With what it owns, in the foreground. Deleting what is not there does nothing. Raises ClusterError."""
        content = b'{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Foreground"}'
        await self._call("DELETE", self._path(kind, name), content, "application/json")

    def _path(self, kind: str, name: str | None = None) -> str:
        group, plural = COLLECTIONS[kind]
        path = f"/{group}/namespaces/{self._namespace}/{plural}"
        return path if name is None else f"{path}/{name}"

    async def _call(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        content_type: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any] | None:
        """None for 404. What may succeed later (no answer, 409, 429, 5xx) is tried again: all calls are idempotent."""
        pause, failure = FIRST_PAUSE_S, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            try:
                headers = {"authorization": f"Bearer {self._token_file.read_text(encoding='ascii').strip()}"}
                if content_type:
                    headers["content-type"] = content_type
                url = f"{self._server}{path}" + (f"?{urlencode(query)}" if query else "")
                answer = await self._service.ask(method, url, content=content, headers=headers)
                if answer.status == 404:
                    return None
                if 200 <= answer.status < 300:
                    return dict(json.loads(answer.content))
                failure = f"{answer.status} {_message(answer)}"
                if answer.status not in (409, 429) and answer.status < 500:
                    break
            except (ExternalUnavailable, OSError, ValueError) as error:
                failure = str(error) or type(error).__name__
        raise ClusterError(
            f"Kubernetes did not {method} {path}: {failure}; check the gateway's service account and the API server"
        )


def _message(answer: ExternalAnswer) -> str:
    """Message of a Status object, which never quotes what a Secret holds."""
    try:
        return str(json.loads(answer.content)["message"])[:400]
    except (ValueError, KeyError, TypeError):
        return "without a reason"
