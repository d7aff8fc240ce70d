"""Launcher of backends as local processes: one child each, with its own certificate, log file and GPUs.

All files of a backend are in ``<data>/backends/<id>/`` (mode 0700): its leaf certificate, its key and its log. The
child is held by a leash (`regions.launchers.supervise`), so that none outlives this process, however it ends. Its
environment is a short list: what a child is not given, it cannot leak.

Leaves are renewed in their last third, in place: a backend reads its files again when they change.
"""

import asyncio
import json
import logging
import os
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from audit.files.new_file import make_private_folder, open_private
from audit.files.secret_file import shred_secret
from regions.errors import LaunchError
from regions.fleet.cards import CPU
from regions.fleet.fleet import Backend
from regions.fleet.launcher import BackendSpec, Progress, RunningBackend, silent
from regions.identity.authority import LEAF_LIFETIME, CertificateAuthority
from regions.identity.identity import GatewayIdentity
from regions.launchers import supervise, topology
from regions.launchers.topology import Topology

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "backend", "serve")
READY_WITHIN_S = 180.0
READY_POLL_S = 0.05
GRACE_S = 10.0
RENEWAL_CHECK_S = 600.0
TAIL_LINES = 20
KEPT_LOGS = 100
"""Backends that have ended whose logs are kept."""
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "TRITON_CACHE_DIR")


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """After a crash wait `first_s`, then twice as long each time up to `longest_s`; reset by a run of `steady_s`."""

    first_s: float = 1.0
    longest_s: float = 60.0
    steady_s: float = 300.0


@dataclass(slots=True)
class _Child:
    spec: BackendSpec
    process: Process
    running: RunningBackend
    watching: asyncio.Task[None] | None = None


class LocalLauncher:
    """A `Launcher`. Also an async context manager, which closes it.

    `on_change` is called with the id and the running backend whenever a start succeeds (after a crash the port is
    another), and with the id and None when a backend has crashed. `gpus`: device numbers that it may hand out, where a
    spec names a kind of card and no device; several for one backend are chosen by `topology`, how they are linked.
    `options`: more of `backend serve`, for every backend.
    """

    def __init__(
        self,
        data: Path,
        authority: CertificateAuthority | Callable[[], CertificateAuthority],
        *,
        command: Sequence[str] = COMMAND,
        ready_within_s: float = READY_WITHIN_S,
        grace_s: float = GRACE_S,
        leaf_lifetime: timedelta = LEAF_LIFETIME,
        renewal_check_s: float = RENEWAL_CHECK_S,
        restart: RestartPolicy | None = None,
        gpus: Sequence[int] = (),
        topology: Callable[[], Topology] = topology.read,
        options: Callable[[], Sequence[str]] = tuple,
        on_change: Callable[[str, RunningBackend | None], None] = lambda backend_id, running: None,
    ) -> None:
        self._folder = data.resolve() / "backends"
        self._open_authority = authority
        self._command = tuple(command)
        self._ready_within_s = ready_within_s
        self._grace_s = grace_s
        self._leaf_lifetime = leaf_lifetime
        self._renewal_check_s = renewal_check_s
        self._restart = restart
        self._gpus = tuple(gpus)
        self._read_topology = topology
        self._topology: Topology | None = None
        self._options = options
        self._on_change = on_change
        self._children: dict[str, _Child] = {}
        self._starting: dict[str, tuple[int, ...]] = {}  # with its GPUs
        self._ending: dict[
            str, tuple[asyncio.Task[None], tuple[int, ...]]
        ] = {}  # with its GPUs, which it has until then

    outlives = False

    async def adopt(self) -> None:
        """Nothing: processes die with what launched them."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self, spec: BackendSpec, *, progress: Progress = silent) -> RunningBackend:
        """Returns when it is ready. Raises LaunchError with the end of its log, and nothing left running."""
        name = spec.identity.backend
        if name in self._children or name in self._starting or name in self._ending:
            raise LaunchError(f"backend {name} runs already; stop it first")
        if spec.cards > 1 and self._topology is None:
            self._topology = await asyncio.to_thread(self._read_topology)
        spec = self._with_gpus(spec)
        self._starting[name] = spec.gpus
        try:
            child = await self._launch(spec, progress)
        finally:
            del self._starting[name]
        self._children[name] = child
        child.watching = asyncio.create_task(self._watch(child), name=f"watch {name}")
        self._on_change(name, child.running)
        return child.running

    async def stop(self, backend_id: str) -> None:
        """Who asks while it ends waits for the same end; who stops waiting does not stop it."""
        child = self._children.pop(backend_id, None)
        if child is not None:
            ending = asyncio.create_task(self._end(child), name=f"end {backend_id}")
            self._ending[backend_id] = ending, child.spec.gpus
            ending.add_done_callback(lambda _: self._ending.pop(backend_id))
        if backend_id in self._ending:
            await asyncio.shield(self._ending[backend_id][0])

    async def _end(self, child: _Child) -> None:
        if child.watching is not None:
            child.watching.cancel()
            await asyncio.gather(child.watching, return_exceptions=True)
        await self._let_go(child.process)
        await asyncio.to_thread(self._tidy, child.spec.identity.backend)

    async def close(self) -> None:
        await asyncio.gather(*(self.stop(name) for name in [*self._children, *self._ending]))

    @property
    def _authority(self) -> CertificateAuthority:
        if not isinstance(self._open_authority, CertificateAuthority):
            self._open_authority = self._open_authority()
        return self._open_authority

    @property
    def running(self) -> dict[str, RunningBackend]:
        """By id; one that crashed and waits to be started again is not among them."""
        return {name: c.running for name, c in self._children.items() if c.process.returncode is None}

    def _with_gpus(self, spec: BackendSpec) -> BackendSpec:
        """Free GPUs of ours, as many as the backend needs. Raises LaunchError if fewer are free."""
        if spec.card in (None, CPU) or spec.gpus:
            return spec
        free = self._free_gpus()
        if len(free) < spec.cards:
            found = "no GPU of this machine is" if not free else f"{len(free)} GPUs of this machine are"
            needs = "" if spec.cards == 1 else f", which needs {spec.cards}"
            raise LaunchError(f"{found} free for {spec.identity.backend}{needs}; it may use {self._gpus or 'none'}")
        chosen = (self._topology or Topology()).choose(free, spec.cards) if spec.cards > 1 else (free[0],)
        assert chosen is not None  # noqa: S101 -- enough are free
        return replace(spec, gpus=chosen, options=("--device", "cuda", *spec.options))

    def _free_gpus(self) -> list[int]:
        """GPUs of this gateway that no backend has, starting and ending ones included."""
        taken = {gpu for gpus in self._starting.values() for gpu in gpus}
        taken |= {gpu for _, gpus in self._ending.values() for gpu in gpus}
        taken |= {gpu for child in self._children.values() for gpu in child.spec.gpus}
        return [gpu for gpu in self._gpus if gpu not in taken]

    async def _launch(self, spec: BackendSpec, progress: Progress) -> _Child:
        name = spec.identity.backend
        folder = self._folder / name
        make_private_folder(folder)
        progress(f"{name}: issuing its certificate")
        command = self._command_line(spec, folder)
        log = folder / "backend.log"
        progress(f"{name}: starting, loading {spec.model.name}")
        descriptor = open_private(log, os.O_WRONLY | os.O_APPEND)
        try:
            began_at = os.fstat(descriptor).st_size
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", supervise.__file__, str(self._grace_s), *command),
                stdin=PIPE,
                stdout=descriptor,
                stderr=descriptor,
                cwd=folder,
                env=_environment(spec),
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        try:
            port, pid, transfer_port = await self._ready(process, log, began_at)
        except BaseException as error:
            await self._let_go(process)
            if isinstance(error, Exception):
                raise LaunchError(f"backend {name} did not start: {error}{_tail(log, began_at)}") from error
            raise
        backend = Backend(
            id=name,
            tenant=spec.identity.tenant,
            region=spec.identity.region,
            url=f"https://127.0.0.1:{port}",
            uri=spec.identity.uri,
            models=(spec.served_name,),
            role=spec.role,
            transfer=None if transfer_port is None else f"127.0.0.1:{transfer_port}",
        )
        progress(f"{name}: ready on port {port}")
        return _Child(spec, process, RunningBackend(backend, pid, log))

    def _command_line(self, spec: BackendSpec, folder: Path) -> list[str]:
        identity = spec.identity
        files = self._authority.issue(identity, folder, lifetime=self._leaf_lifetime)
        command = [*self._command, "--model", str(spec.model.resolve()), "--served-name", spec.served_name]
        command += ["--host", "127.0.0.1", "--port", "0"]
        command += ["--cert", str(files.certificate), "--key", str(files.key), "--ca", str(files.root.resolve())]
        command += ["--peer-uri", GatewayIdentity(identity.cell, identity.tenant).uri]
        command += ["--tenant", identity.tenant, "--region", identity.region, "--backend-id", identity.backend]
        if spec.threads is not None:
            command += ["--threads", str(spec.threads)]
        if spec.role != "mixed":
            command += ["--role", spec.role, "--transfer-memory"]  # all of them are of this host and user
        draft = "" if spec.draft is None else str(spec.draft.resolve())
        return [*command, *spec.guessing(draft), *self._options(), *spec.options]

    async def _ready(self, process: Process, log: Path, began_at: int) -> tuple[int, int, int | None]:
        """Port and pid, and where it computes prompts for others the port for these, from the line of its log that
        reports that it is ready.

        The child prints into the file and not into a pipe: a pipe that some descendant keeps open would never end, and
        one that is not read would stop the child.
        """
        try:
            async with asyncio.timeout(self._ready_within_s):
                with log.open("rb") as file:
                    file.seek(began_at)
                    pending = b""
                    while True:
                        ended = process.returncode is not None
                        *lines, pending = (pending + file.read()).split(b"\n")
                        for line in lines:
                            if (ready := _ready_line(line)) is not None:
                                return ready
                        if ended:
                            break
                        await asyncio.sleep(READY_POLL_S)
        except TimeoutError:
            raise LaunchError(
                f"it was not ready within {self._ready_within_s:g} s; read the lines of its log"
            ) from None
        raise LaunchError(f"it ended with status {process.returncode}; read the lines of its log")

    async def _let_go(self, process: Process) -> None:
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(self._grace_s + 5):
                await process.wait()
        except TimeoutError:  # the supervisor itself hangs; the kernel then ends what it holds
            process.kill()
            await process.wait()

    def _tidy(self, name: str) -> None:
        """Delete the key of a backend that has ended, and the oldest logs beyond `KEPT_LOGS`."""
        with suppress(OSError):
            shred_secret(self._folder / name / "key.pem")
            (self._folder / name / "cert.pem").unlink()
        with suppress(OSError):  # another launcher of the same folder may be at it too
            ended = [folder for folder in self._folder.iterdir() if not (folder / "key.pem").exists()]
            ended = [folder for folder in ended if folder.name not in self._starting.keys() | self._children.keys()]
            for folder in sorted(ended, key=lambda each: each.stat().st_mtime)[:-KEPT_LOGS]:
                shutil.rmtree(folder)

    async def _watch(self, child: _Child) -> None:
        """Report a crash, and start the backend again where a restart policy is set."""
        loop = asyncio.get_running_loop()
        delay = self._restart.first_s if self._restart else 0.0
        while True:
            began = loop.time()
            await self._ended(child)
            name = child.spec.identity.backend
            self._on_change(name, None)
            if self._restart is None:
                self._children.pop(name, None)
                await asyncio.to_thread(self._tidy, name)
                return
            if loop.time() - began >= self._restart.steady_s:
                delay = self._restart.first_s
            again: _Child | None = None
            while again is None:
                await asyncio.sleep(delay)
                delay = min(delay * 2, self._restart.longest_s)
                with suppress(LaunchError):
                    again = await self._launch(child.spec, silent)
            child.process, child.running = again.process, again.running
            self._on_change(name, child.running)

    async def _ended(self, child: _Child) -> None:
        """Returns when the process has ended; renews its leaf meanwhile."""
        identity = child.spec.identity
        while True:
            try:
                async with asyncio.timeout(self._renewal_check_s):
                    await child.process.wait()
                return
            except TimeoutError:
                try:
                    folder = self._folder / identity.backend
                    self._authority.renew_if_due(identity, folder, lifetime=self._leaf_lifetime)
                except Exception as error:  # the old leaf is valid for hours; the next look tries again
                    logger.error(
                        "the leaf of %s could not be renewed: %s"
                        "; check that its folder and the authority can be read and written",
                        identity.backend,
                        type(error).__name__,
                    )


def _environment(spec: BackendSpec) -> dict[str, str]:
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])  # the very code that launches, installed or not
    environment["PYTHONUNBUFFERED"] = "1"
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpus))
    return environment


def _ready_line(line: bytes) -> tuple[int, int, int | None] | None:
    try:
        entry = json.loads(line)
        if entry["event"] == "ready":
            transfer = entry.get("transfer_port")
            return int(entry["port"]), int(entry["pid"]), None if transfer is None else int(transfer)
    except (ValueError, TypeError, KeyError):
        pass
    return None


def _tail(log: Path, began_at: int) -> str:
    with log.open("rb") as file:
        file.seek(max(began_at, log.stat().st_size - 8192))
        lines = file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    return "".join(f"\n  | {line}" for line in lines) + f"\n  (log: {log})"
