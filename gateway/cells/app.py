"""What a cell answers to others: to each peer the configuration that it may know, and nothing else."""

import logging
from collections.abc import Callable
from time import time

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from audit.errors import AuditError, NoteError
from audit.keys.signer import Signer
from audit.tree.note import VerifierKey
from gateway.database.database import Database
from gateway.database.errors import NotFound, StoreError
from gateway.records.bundle import sign_bundle
from gateway.records.bundle_request import MAX_QUESTION, PATH, PullRefused, asker, check_question, key_name
from gateway.store.cells import bundle_for, peer

logger = logging.getLogger("domicile.gateway")

PREFIX = "/cells"


def build_cells(database: Database, cell: str, signer: Signer, now: Callable[[], float] = time) -> Starlette:
    """To be mounted at PREFIX: ``POST /cells/v1/bundle`` answers a peer's signed question with its bundle.

    403 for a caller that is no peer, also if the rest of its request is wrong: it learns no more.
    """

    async def bundle(request: Request) -> Response:
        question = b""
        async for chunk in request.stream():
            question += chunk
            if len(question) > MAX_QUESTION:
                return Response(status_code=413)
        try:
            return Response(await run_in_threadpool(answer, question), media_type="application/json")
        except (PullRefused, NotFound, NoteError, UnicodeDecodeError) as error:
            logger.warning("a cell's question was refused: %s; compare the keys and the clocks of the two cells", error)
            return Response(status_code=403)
        except (StoreError, AuditError) as error:
            logger.error(
                "a cell's question could not be answered: %s; read the cause, the other cell asks again", error
            )
            return Response(status_code=503, headers={"retry-after": "5"})

    def answer(question: bytes) -> bytes:
        text = question.decode()
        known = peer(database, asker(text))
        check_question(text, VerifierKey.parse(known.verifier_key), peer=known.id, home=cell, now=now())
        return sign_bundle(bundle_for(database, cell, known.id), key_name(cell), signer)

    app = Starlette(routes=[Route(PATH.removeprefix(PREFIX), bundle, methods=["POST"])])
    app.router.redirect_slashes = False  # the redirect would go to whatever host the request names
    return app
