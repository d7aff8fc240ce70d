"""Runs the demo: starts gateway and backends, shows what to try, and stops them."""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from time import perf_counter

from rich.console import Console

from audit.files.new_file import make_private_folder, open_private
from gateway.configuration.settings import Listen, load_settings
from gateway.demo import guide, scene
from gateway.demo.demo_check import run_checks
from gateway.demo.model import demo_model
from gateway.installation.installation import Installation
from gateway.server.assembly import open_gateway
from gateway.server.logs.log_lines import log_to_stderr
from gateway.server.serve import TO_STOP, Signals, listening, serving
from regions.fleet.launcher import RunningBackend
from regions.launchers.local import LocalLauncher, RestartPolicy


async def run_demo(data: Path, port: int, model: Path | None, *, check: bool) -> bool:
    """Until interrupted, or until the checks are done; then whether all passed.

    Raises RegionsError when a backend does not start, OSError when the port is taken or the model is not there.
    """
    log_to_stderr(logging.WARNING, "%(levelname)s %(name)s: %(message)s")
    console = Console(highlight=False, stderr=False)
    began = perf_counter()

    def say(sentence: str) -> None:
        console.print(f"[dim]{perf_counter() - began:5.1f} s[/dim]  {sentence}", soft_wrap=True)

    check_port(port)
    found = await asyncio.to_thread(demo_model, say) if model is None else model
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(make_private_folder, data)
        stack.enter_context(alone(data))
        return await _run(data, port, found, say, console, check)


async def _run(data: Path, port: int, model: Path, say: Callable[[str], None], console: Console, check: bool) -> bool:
    installation = await asyncio.to_thread(Installation.create, data, scene.CELL)
    say(f"data folder {installation.data}")
    keys = await asyncio.to_thread(scene.set_up, installation)
    say("tenants acme and globex, three projects, their policies and keys")
    authority = installation.authority()
    say(f"certificate authority of cell {scene.CELL}; regions {', '.join(scene.REGIONS)}")

    moved: set[asyncio.Task[None]] = set()

    def on_change(backend_id: str, running: RunningBackend | None) -> None:
        if running is None:
            console.print(f"[yellow]backend {backend_id} ended; starting it again[/yellow]")
            return
        task = asyncio.ensure_future(asyncio.to_thread(scene.register, installation, running.backend))
        moved.add(task)
        task.add_done_callback(moved.discard)

    async with AsyncExitStack() as stack:
        key = ("--request-key", str(installation.request_key()))
        launcher = LocalLauncher(
            installation.data, authority, restart=RestartPolicy(), options=lambda: key, on_change=on_change
        )
        await stack.enter_async_context(launcher)
        with console.status("the backends load their model"):
            await asyncio.gather(*(launcher.start(spec, progress=say) for spec in scene.specs(model)))
            await asyncio.gather(*moved)
        settings = load_settings(data=installation.data, node="demo", listen=Listen(port=port))
        gateway = await stack.enter_async_context(open_gateway(settings))
        port = await stack.enter_async_context(serving(gateway.app, settings.listen))
        base = f"http://127.0.0.1:{port}/v1"
        say(f"gateway on {base}")
        if check:
            return await asyncio.to_thread(run_checks, console, base, keys, installation.data)
        guide.show(console, base, keys, installation.data)
        await Signals(*TO_STOP).next()
        console.print("\nstopping: running answers are finished, then the backends end")
    return True


@contextmanager
def alone(data: Path) -> Iterator[None]:
    """Allow one demo a folder: a second one would take the backends of the first.

    Raises OSError.
    """
    with os.fdopen(open_private(data / "demo.lock", os.O_RDWR), "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OSError(f"a demo runs in {data} already; stop it, or give this one --data FOLDER --port 0") from None
        yield


def check_port(port: int) -> None:
    """Raises OSError where the port is taken, which would else show only once the models are loaded."""
    try:
        listening("127.0.0.1", port).close()
    except OSError as error:
        raise OSError(f"the demo cannot start: {error}; or give it --port 0") from None
