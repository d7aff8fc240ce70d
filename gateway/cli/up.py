"""``domicile up``: the gateway in the foreground."""

import asyncio
import gc
import logging
import shlex
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from audit.errors import AuditError
from audit.files.reasons import describe_os_error
from gateway.configuration.settings import Settings, SettingsError
from gateway.database.errors import StoreError
from gateway.evidence_pack.pack_sources import give_sources
from gateway.installation.doctor import log_warnings
from gateway.installation.installation import InstallationError
from gateway.server.assembly import Gateway, open_gateway
from gateway.server.heap import keep_collected
from gateway.server.logs.log_lines import log_to_stderr, say
from gateway.server.reload import reload_settings
from gateway.server.serve import TO_STOP, RunningServer, Signals, running_server, say_listening
from gateway.workers.membership import Membership
from gateway.workers.peer import PeerGone
from regions.errors import RegionsError

SWITCH_S = 0.001
"""For how long a thread beside the event loop keeps the interpreter that the loop asks for; Python's own 5 ms add up,
since the loop has to ask again after each system call."""
OUTSIDE_S = 10.0
"""What calls to outside services get once running answers are finished; the rest of the stop needs some of them."""


async def run_gateway(
    settings: Settings,
    read: Callable[[], Settings] | None = None,
    member: Membership | None = None,
    listener: socket.socket | None = None,
) -> int:
    """Exit status: 0 after a clean stop, 1 when it could not start, with one sentence on stderr why.

    `read` reads the settings again, for a reload. `member` and `listener`: where this is one of several workers.
    """
    give_sources()  # a worker is started without the commands, which do it too
    log_to_stderr(logging.INFO, kind=settings.log.format)
    sys.setswitchinterval(SWITCH_S)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        async with open_gateway(settings, member) as gateway:
            signals = Signals(*TO_STOP, signal.SIGHUP)  # before anybody can be promised an answer
            async with running_server(gateway.app, settings.listen, gateway.bounds, listener) as server:
                gc.freeze()  # modules and tenants are there to stay: not to be looked through again, in mid-answer
                gc.enable()
                collecting = asyncio.create_task(keep_collected(lambda: server.is_idle), name="garbage")
                warming = asyncio.create_task(gateway.inspection.warm(), name="inspection")
                watching = await _announce(settings, gateway, server, member, signals)
                reload = partial(
                    reload_settings, gateway.settings, read or (lambda: settings), server.renew_certificate, gateway.log
                )
                await _until_stopped(signals, reload, gateway, server, settings.listen.lame_duck_s)
                for task in (collecting, warming, *watching):
                    task.cancel()
                if member is None:
                    say("finishing running answers")
            if external := sys.modules.get("audit.external_service"):  # loaded where an outside service is configured
                external.stop_within(OUTSIDE_S)  # external services have this long to answer
        if member is not None:
            await member.leave()
    except PeerGone:  # the supervisor ended before this worker was ready
        return 1
    except (InstallationError, StoreError, RegionsError, SettingsError, AuditError, ImportError) as error:
        say(str(error), logging.ERROR)
        return 1
    except OSError as error:
        say(describe_os_error(error), logging.ERROR)
        return 1
    finally:
        if external := sys.modules.get("audit.external_service"):
            external.resume()  # the process may go on, with another gateway for one
    return 0


async def _announce(
    settings: Settings, gateway: Gateway, server: RunningServer, member: Membership | None, signals: Signals
) -> list[asyncio.Task[None]]:
    """Say that calls are taken: a worker to its supervisor, which it does not outlive; its first one also to people
    what only one is to say."""
    tasks = []
    if member is not None:
        await member.ready(gateway.telemetry.exposition, server.hand_over)
        tasks.append(asyncio.create_task(signals.stop_when(member.gone), name="supervisor"))
    if member is None or member.is_first:
        log_warnings(gateway.configuration_warnings)
    if member is None:
        say_listening(settings.listen, server.port)
    if (member is None or member.is_first) and not await asyncio.to_thread(gateway.has_operator):
        hint = f"domicile person bootstrap --data {shlex.quote(str(settings.data))}"
        say(f"there is no operator yet; create the first one with: {hint}")
    return tasks


async def _until_stopped(
    signals: Signals,
    reload: Callable[[], Awaitable[object]],
    gateway: Gateway,
    server: RunningServer,
    lame_duck_s: float,
) -> None:
    """Serve until a signal to stop. After SIGTERM calls are still taken for `lame_duck_s` seconds, or until a second
    signal: a balancer goes on sending them until it has seen that the gateway is not ready."""
    if await signals.stop(reload) is not signal.SIGTERM or not lame_duck_s:
        return
    gateway.health.stop()
    server.ask_to_leave()
    say(f"not ready any more; taking calls for {lame_duck_s:g} s")
    with suppress(TimeoutError):
        async with asyncio.timeout(lame_duck_s):
            await signals.stop(reload)
