"""One worker of a gateway: started by its supervisor, with two sockets that it inherits. No command of people."""

import asyncio
import json
import socket
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import NamedTuple

from gateway.workers.membership import Membership


class WorkerArguments(NamedTuple):
    """What a supervisor starts a worker with. `link`, `listener`: descriptors of its sockets. `config`, `data`: as
    given to ``domicile up``."""

    node: str
    place: int
    generation: str
    places: int
    link: int
    listener: int
    config: str | None
    data: str | None


async def start_worker(arguments: WorkerArguments) -> Process:
    """Start the process, in a group of its own: Ctrl-C at a terminal is the supervisor's to pass on."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway.cli.worker",
        json.dumps(arguments),
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=(arguments.link, arguments.listener),
        start_new_session=True,
    )


def main() -> None:
    import gc

    gc.disable()  # as in `domicile up`
    from gateway.cli.up import run_gateway
    from gateway.configuration.settings import Settings, load_settings
    from gateway.server.serve import run
    from gateway.workers.worker_names import worker_name

    arguments = WorkerArguments(*json.loads(sys.argv[1]))

    def read() -> Settings:
        config = Path(arguments.config) if arguments.config is not None else None
        settings = load_settings(config, **({"data": Path(arguments.data)} if arguments.data is not None else {}))
        return settings.model_copy(update={"node": worker_name(arguments.node, arguments.place, arguments.generation)})

    async def serve() -> int:
        member = await Membership.join(
            socket.socket(fileno=arguments.link),
            arguments.node,
            arguments.place,
            arguments.generation,
            arguments.places,
        )
        return await run_gateway(read(), read, member, socket.socket(fileno=arguments.listener))

    sys.exit(run(serve()))


if __name__ == "__main__":
    main()
