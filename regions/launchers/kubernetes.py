"""Backends as Deployments of a Kubernetes cluster, on nodes reserved for their tenant.

Unlike processes of this machine they outlive the gateway that started them: another one, or the next, finds them by
their labels. So closing stops no backend; `stop` does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from audit.files.new_file import make_private_folder
from regions.errors import ClusterError, LaunchError, RegionsError
from regions.fleet.fleet import Backend, Role
from regions.fleet.launcher import BackendSpec, Progress, RunningBackend, silent
from regions.identity.authority import LEAF_LIFETIME, CertificateAuthority
from regions.identity.identity import BackendIdentity
from regions.launchers.cluster import Cluster
from regions.launchers.kubernetes_objects import (
    MANAGER,
    MODEL,
    REQUEST_KEY,
    TRANSFER_PORT,
    ClusterSettings,
    object_name,
    objects,
    role_of,
    secret,
    url,
)

logger = logging.getLogger("domicile.regions")

READY_WITHIN_S = 900.0
POLL_S = 1.0
RENEWAL_CHECK_S = 600.0
LOOK_S = 60.0
GONE_WITHIN_S = 120.0


class KubernetesLauncher:
    """A `Launcher`. Also an async context manager, which renews certificates meanwhile.

    `on_change` is called as `LocalLauncher` calls it. Leaves are issued into ``<data>/backends/<id>/`` and applied as
    Secrets, again in their last third; pods read them when kubelet has replaced the files.
    """

    def __init__(
        self,
        cluster: Cluster,
        data: Path,
        authority: Callable[[], CertificateAuthority],
        settings: ClusterSettings | None = None,
        *,
        request_key: Callable[[], Path] | None = None,
        ready_within_s: float = READY_WITHIN_S,
        poll_s: float = POLL_S,
        renewal_check_s: float = RENEWAL_CHECK_S,
        look_s: float = LOOK_S,
        leaf_lifetime: timedelta = LEAF_LIFETIME,
        on_change: Callable[[str, RunningBackend | None], None] = lambda backend_id, running: None,
    ) -> None:
        self._cluster = cluster
        self._folder = data.resolve() / "backends"
        self._authority = authority
        self._request_key = request_key
        self._settings = settings or ClusterSettings()
        self._ready_within_s = ready_within_s
        self._poll_s = poll_s
        self._renewal_check_s = renewal_check_s
        self._look_s = look_s
        self._leaf_lifetime = leaf_lifetime
        self._on_change = on_change
        self._identities: dict[str, BackendIdentity] = {}
        self._running: dict[str, RunningBackend] = {}
        self._applied: dict[str, bytes] = {}  # the leaf that the cluster has, by backend
        self._starting: set[str] = set()
        self._background: list[asyncio.Task[None]] = []

    outlives = True

    async def adopt(self) -> None:
        """This cell's objects in the cluster, whichever gateway created them. Raises ClusterError."""
        for kept in await self._kept():
            self._identities[kept.identity.backend] = kept.identity
            running = RunningBackend(await self._backend(kept), None, None)
            self._running.setdefault(kept.identity.backend, running)

    async def __aenter__(self) -> Self:
        self._background = [
            asyncio.create_task(
                self._forever(self._renewal_check_s, "leaves of backends could not be renewed", self.renew)
            ),
            asyncio.create_task(self._forever(self._look_s, "the cluster's backends could not be listed", self.look)),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close. Backends keep running: they belong to the cluster, not to this process."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background = []

    @property
    def running(self) -> Mapping[str, RunningBackend]:
        """Those that this launcher started, or found started, and that were ready then."""
        return dict(self._running)

    async def start(self, spec: BackendSpec, *, progress: Progress = silent) -> RunningBackend:
        """Apply its objects and wait until its pod answers. What runs already as it should is found and not restarted.

        Raises LaunchError with the cluster's reason. What was not there before is then deleted; a backend that ran
        already keeps its old pod.
        """
        name = spec.identity.backend
        if spec.role != "mixed" and self._request_key is None:
            raise LaunchError(
                f"backend {name} is one of a pair for prefill and decode, which answers signed calls alone"
                "; give the launcher the key that verifies them (request_key)"
            )
        progress(f"{name}: issuing its certificate")
        before: Mapping[str, Any] | None = None
        self._starting.add(name)
        try:
            before = await self._cluster.get("Deployment", object_name(name))
            files = self._identity_files(spec.identity)
            for object in objects(spec, files, self._settings):
                await self._cluster.apply(object)
            self._applied[name] = files["cert.pem"]
            progress(f"{name}: waiting for its pod")
            await self._ready(name)
            backend = await self._backend(_Kept(spec.identity, spec.served_name, spec.role))
        except BaseException as error:
            if before is None:
                await asyncio.shield(self._delete(name, quietly=True))
            if isinstance(error, RegionsError):
                raise LaunchError(f"backend {name} did not start: {error}") from error
            raise
        finally:
            self._starting.discard(name)
        running = self._running[name] = RunningBackend(backend, None, None)
        self._identities[name] = spec.identity
        self._on_change(name, running)
        progress(f"{name}: ready")
        return running

    async def stop(self, backend_id: str) -> None:
        """Returns when no pod of it is left; each got its grace to finish answers. Raises LaunchError if one stays: it
        is then running still, to be stopped again."""
        self._identities.pop(backend_id, None)  # its key is not to come back with a new leaf
        await self._delete(backend_id)
        self._running.pop(backend_id, None)

    async def scale(self, backend_id: str, replicas: int) -> None:
        """To 0: its GPU is free and its objects stay; to 1 again: as `start`, without them. Raises LaunchError."""
        try:
            await self._cluster.scale(object_name(backend_id), replicas)
            if replicas:
                await self._ready(backend_id)
        except RegionsError as error:
            raise LaunchError(f"backend {backend_id} was not scaled to {replicas}: {error}") from error

    async def _kept(self) -> list["_Kept"]:
        """Each backend of this cell in the cluster."""
        cell = self._authority().cell
        mine = {"app.kubernetes.io/managed-by": MANAGER, "domicile.eu/cell": cell}
        kept = [each["metadata"] for each in await self._cluster.list("Deployment", mine)]
        return [
            _Kept(
                BackendIdentity(
                    cell, *(each["labels"][f"domicile.eu/{name}"] for name in ("tenant", "region", "backend"))
                ),
                each.get("annotations", {}).get(MODEL, ""),
                role_of(each["labels"]),
            )
            for each in kept
        ]

    async def renew(self) -> list[str]:
        """Issue the leaves that are in their last third, apply those that the cluster has not; whose they are, by id.

        Raises RegionsError; what was issued and not applied then is, the next time.
        """
        renewed = []
        for name, identity in list(self._identities.items()):
            files = self._identity_files(identity)
            if files["cert.pem"] != self._applied.get(name):
                await self._cluster.apply(secret(identity, files, self._settings))
                self._applied[name] = files["cert.pem"]
                renewed.append(name)
        return renewed

    async def look(self) -> None:
        """Forget those that were deleted by others, and find those that a failed start left: the leader replaces
        the ones and stops the others. Raises RegionsError."""
        before = set(self._running)
        kept = {each.identity.backend: each for each in await self._kept()}
        for name in before - kept.keys():
            self._identities.pop(name, None)
            if self._running.pop(name, None) is not None:
                self._on_change(name, None)
        for name in kept.keys() - self._running.keys() - self._starting:
            if name not in before:  # else it was stopped while the cluster answered
                self._running[name] = RunningBackend(await self._backend(kept[name]), None, None)
                self._on_change(name, self._running[name])

    async def _forever(self, every_s: float, failed: str, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await work()
            except RegionsError as error:
                logger.error("%s: %s", failed, error)
            except Exception as error:  # retried at the next look: the task must not end
                logger.error("%s: %s", failed, type(error).__name__)

    def _identity_files(self, identity: BackendIdentity) -> dict[str, bytes]:
        folder, authority = self._folder / identity.backend, self._authority()
        make_private_folder(folder)
        authority.renew_if_due(identity, folder, lifetime=self._leaf_lifetime)
        return {
            "cert.pem": (folder / "cert.pem").read_bytes(),
            "key.pem": (folder / "key.pem").read_bytes(),
            "ca.pem": authority.root_file.read_bytes(),
        } | ({REQUEST_KEY: self._request_key().read_bytes()} if self._request_key else {})

    async def _backend(self, kept: "_Kept") -> Backend:
        """Raises ClusterError, LaunchError."""
        identity = kept.identity
        return Backend(
            id=identity.backend,
            tenant=identity.tenant,
            region=identity.region,
            url=url(identity.backend, self._settings),
            uri=identity.uri,
            models=(kept.model,),
            role=kept.role,
            transfer=await self._transfer(identity.backend) if kept.role == "prefill" else None,
        )

    async def _transfer(self, backend_id: str) -> str:
        """Where others fetch the blocks of prompts: the address of its Service, for they have no DNS."""
        service = await self._cluster.get("Service", object_name(backend_id)) or {}
        address = service.get("spec", {}).get("clusterIP") or "None"
        if address == "None":
            raise LaunchError("its Service has no address of the cluster; check who changes Services in this namespace")
        return f"[{address}]:{TRANSFER_PORT}" if ":" in address else f"{address}:{TRANSFER_PORT}"

    async def _ready(self, backend_id: str) -> None:
        """Raises LaunchError when the cluster gives up or takes too long, ClusterError when it does not answer."""
        because = "its pod did not become ready"
        try:
            async with asyncio.timeout(self._ready_within_s):
                while True:
                    deployment = await self._cluster.get("Deployment", object_name(backend_id))
                    if deployment is None:
                        raise LaunchError("its Deployment is gone; check who deletes Deployments in this namespace")
                    ready, because, final = _state(deployment)
                    if ready:
                        return
                    if final:
                        raise LaunchError(because)
                    await asyncio.sleep(self._poll_s)
        except TimeoutError:
            raise LaunchError(
                f"it was not ready within {self._ready_within_s:g} s: {because}"
                "; see `kubectl describe pod` of this backend"
            ) from None

    async def _delete(self, backend_id: str, *, quietly: bool = False) -> None:
        """All kinds are tried, also after one failed: above all its key must not stay behind."""
        name, failed = object_name(backend_id), ""
        for kind in ("Deployment", "Secret", "PodDisruptionBudget", "Service", "NetworkPolicy"):
            try:
                await self._cluster.delete(kind, name)
            except ClusterError as error:
                failed = failed or str(error)
        self._applied.pop(backend_id, None)
        try:
            async with asyncio.timeout(GONE_WITHIN_S):
                while await self._cluster.get("Deployment", name) is not None:  # noqa: ASYNC110  # it is elsewhere
                    await asyncio.sleep(self._poll_s)
        except (ClusterError, TimeoutError) as error:
            failed = failed or str(error) or "its pod is still there"
        if failed and not quietly:
            raise LaunchError(f"backend {backend_id} did not go: {failed}; delete its objects with kubectl")
        if failed:
            logger.error(
                "what was applied for backend %s could not be deleted: %s; delete them with kubectl", backend_id, failed
            )


@dataclass(frozen=True, slots=True)
class _Kept:
    """A backend in the cluster. model: the name that it is asked for by."""

    identity: BackendIdentity
    model: str
    role: Role


def _state(deployment: Mapping[str, Any]) -> tuple[bool, str, bool]:
    """Ready; else why not yet; and whether it never will be, of a Deployment's status (apps/v1)."""
    status, wanted = deployment.get("status", {}), deployment["spec"]["replicas"]
    seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 1)
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    if seen and updated >= wanted and available >= wanted and status.get("replicas", 0) == updated:
        return True, "", False
    for condition in status.get("conditions", ()):
        if condition["status"] == "False" and condition.get("reason") == "ProgressDeadlineExceeded":
            return False, condition.get("message", "progress deadline exceeded"), True
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return False, condition.get("message", "its pod cannot be created"), True
    return False, "its pod is not available yet", False
