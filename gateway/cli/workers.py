"""``domicile up --workers N``: the gateway as N processes, under one that starts them."""

import asyncio
import logging
import signal
import socket
from asyncio.subprocess import Process
from pathlib import Path

from gateway.cli.worker import WorkerArguments, start_worker
from gateway.configuration.settings import Settings
from gateway.server.logs.log_lines import log_to_stderr, say
from gateway.server.serve import TO_STOP, Signals, listening_together, say_listening
from gateway.workers.supervisor import Supervisor


async def run_workers(settings: Settings, places: int, config: Path | None, data: Path | None) -> int:
    """Exit status: 0 after a clean stop of all, 1 otherwise. SIGTERM and SIGINT stop them, SIGHUP has them read their
    settings again, SIGUSR2 replaces them one after the other."""
    log_to_stderr(logging.INFO, kind=settings.log.format)
    try:
        listeners = await asyncio.to_thread(listening_together, settings.listen.host, settings.listen.port, places)
    except OSError as error:
        say(str(error), logging.ERROR)
        return 1

    async def start(place: int, generation: str, link: socket.socket) -> Process:
        listener = listeners[place - 1].fileno()
        given = WorkerArguments(
            settings.node, place, generation, places, link.fileno(), listener, _text(config), _text(data)
        )
        return await start_worker(given)

    signals = Signals(*TO_STOP, signal.SIGHUP, signal.SIGUSR2)
    supervisor = Supervisor(start, places, settings.node)
    if not await supervisor.start():
        await supervisor.stop(signal.SIGTERM)
        return 1
    say(f"{places} workers")
    say_listening(settings.listen, listeners[0].getsockname()[1])
    while (number := await signals.next()) in (signal.SIGHUP, signal.SIGUSR2):
        if number is signal.SIGHUP:
            supervisor.reload()
        else:
            supervisor.replace_all()
    say("finishing running answers")
    again = asyncio.create_task(_again(signals, supervisor))
    status = await supervisor.stop(number)
    again.cancel()
    for listener in listeners:
        listener.close()
    return status


async def _again(signals: Signals, supervisor: Supervisor) -> None:
    """Pass on what is asked for while they stop."""
    while True:
        supervisor.send(await signals.next())


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
