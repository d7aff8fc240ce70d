"""Comments during pauses of a streamed answer, so that no proxy or client considers the connection dead.

Clients skip them (HTML Living Standard, server-sent events, §9.2.6); §9.2.7 recommends one about every 15 seconds.
"""

import asyncio

from gateway.openai.asgi_client import Client
from gateway.request.answer.headers import EVENT_STREAM, provenance
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.stages import Accepted

COMMENT = b": the answer goes on\n\n"


class KeepAlive:
    """Comment writer for one attempt of a streamed call. `every_s`: seconds without data before each comment.

    The first comment also sends the status. A later failure reaches the client as an event of the stream.
    """

    __slots__ = ("_accepted", "_client", "_received", "_sent", "_since", "every_s")

    def __init__(self, accepted: Accepted, received: ReceivedAnswer, every_s: float) -> None:
        self.every_s = every_s
        self._accepted = accepted
        self._client: Client = accepted.request.client
        self._received = received
        self._sent = received.bytes_out
        self._since = asyncio.get_running_loop().time()

    def is_due(self, for_s: float = 0.0) -> bool:
        """Return whether a comment has to be sent: the client has received nothing for `every_s` seconds.

        Called when the backend has sent nothing for `for_s` seconds, or nothing for the client. If it is due, the
        interval starts again.
        """
        now = asyncio.get_running_loop().time()
        if self._sent != self._received.bytes_out:
            self._sent, self._since = self._received.bytes_out, now - for_s
        if now - self._since < self.every_s:
            return False
        self._since = now
        return True

    async def silent(self, for_s: float = 0.0) -> None:
        """Send a comment if one is due."""
        if not self.is_due(for_s):
            return
        if self._client.held or not self._client.started:
            routed = self._accepted.routed
            await self._client.hold([*EVENT_STREAM, *provenance(routed.redacted, None, None)], COMMENT)
        else:
            await self._client.write(COMMENT)
