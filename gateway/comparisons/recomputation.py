"""Challenges by a running backend: the texts are content, so they go only where the policy lets a call go.

For the record's reader the same as a challenge on this host (`gateway.comparisons.challenge`): that the commitment is
read is recorded first, and what came of it afterwards. In between, the project's policy in force is judged as for a
call of the answer's model: places, operators, and what a backend has to show. What the policy redacts is not sent at
all, since the backend would need the very text.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from secrets import token_bytes

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from audit.private.audit_context import AuditContext
from backend.wire import Challenged, ChallengeRequest, ErrorBody
from gateway.comparisons.challenge import (
    CHAT,
    ChallengeReport,
    Committed,
    NotChallengeable,
    committed,
    record_challenge,
)
from gateway.content.inspection import Inspection
from gateway.content.prompt import Prompt
from gateway.errors import GatewayError
from gateway.openai import endpoints
from gateway.openai.checked_call import IDENTIFYING_FIELDS
from gateway.openai.endpoints import Endpoint
from gateway.policies.study import PolicyStudy
from gateway.store.text_tests import TextTests
from gateway.upstream.http1 import ConnectionLost, ProtocolError
from policy.facts import BackendFacts
from policy.redact.redactor import Redactor
from regions.fleet.fleet import Backend

CHALLENGE_TIMEOUT_S = 240.0
"""For one backend: a long answer takes hundreds of short prefills behind the calls that it serves."""

NOT_COMPARED = {*IDENTIFYING_FIELDS} | {"cache_salt", "priority", "stream_options"}
"""Fields of a body that leave it, or are the gateway's to set, and that no prompt is rendered from."""

Ask = Callable[[Backend, bytes], Awaitable[tuple[int, bytes | None]]]
"""Sends a body to a backend's POST /challenge; status and response body. Raises GatewayError, ConnectionLost,
ProtocolError and TimeoutError."""


class NoBackendAllowed(NotChallengeable):
    """No backend may read the texts, or none that may is up."""


class HoldsRedacted(NotChallengeable):
    """The texts have what the policy redacts before anything leaves for a backend."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a client has of an answer. prompt: see `Committed.request`. backend: that is to be asked; None: any."""

    text: str
    prompt: str | None = None
    choice: int = 0
    backend: str | None = None


class Fleet:
    """What a challenge needs to know of backends. `registered`: those of tenant and model; `facts`: by which they are
    judged, with what they have shown of weights and hardware."""

    def __init__(
        self,
        study: Callable[[], PolicyStudy],
        registered: Callable[[str, str], Sequence[Backend]],
        ask: Ask,
        facts: Callable[[PolicyStudy, str, str], Awaitable[tuple[BackendFacts, ...]]],
    ) -> None:
        self.ask = ask
        self._study = study
        self._registered = registered
        self._facts = facts

    async def allowed(self, kept: Committed) -> tuple[list[Backend], Redactor]:
        """The backends that the policy lets read the texts, and its redactor.

        Raises NoBackendAllowed with the policy's reasons, NotFound, Invalid, PolicyError.
        """
        study = await asyncio.to_thread(self._study)
        facts = await self._facts(study, kept.tenant, kept.model)
        explained = await asyncio.to_thread(study.explain, kept.tenant, kept.project, kept.model, candidates=facts)
        may = {*explained.decision.backends}
        found = [
            each
            for each in await asyncio.to_thread(self._registered, kept.tenant, kept.model)
            if each.tenant == kept.tenant and each.id in may and each.kind == "domicile"
        ]
        if not found:
            because = "; ".join(reason.because for reason in explained.decision.reasons[:3])
            if explained.decision.pending:
                because = "its backends have not shown what the policy asks for"
            raise NoBackendAllowed(
                f"the policy of {kept.tenant}/{kept.project} lets no backend of {kept.model} read the texts"
                f"{f' ({because})' if because else ''}; start one that it allows, or compute on this host with --cpu"
            )
        return found, Redactor(explained.redaction, hash_key=token_bytes(32))  # nothing that is hashed is sent


class Recomputation:
    """Challenges. `bound`: most in an hour; None for a command, whose caller has the keys anyway."""

    def __init__(self, fleet: Fleet, inspection: Inspection, bound: TextTests | None = None) -> None:
        self._fleet = fleet
        self._inspection = inspection
        self._bound = bound

    async def __call__(
        self, context: AuditContext, tenant: str, request_id: str, given: Given, *, actor: str, reason: str
    ) -> ChallengeReport:
        """Challenge an answer. Raises TooManyTests, what `committed` and `Committed.request` do, NoBackendAllowed,
        HoldsRedacted, and what `Fleet.allowed` does."""
        if self._bound is not None:
            await asyncio.to_thread(self._bound.take, tenant)
        kept = await committed(context, tenant, request_id, actor=actor, reason=reason)
        asked = kept.request(given.prompt, given.text, given.choice)
        backends, redactor = await self._fleet.allowed(kept)
        chosen = _in_order(backends, kept, given.backend)
        leaving = await self._leaving(redactor, kept, asked)
        found, backend = await self._asked(chosen, kept, leaving)
        await record_challenge(context, kept, given.choice, found, actor=actor, reason=reason, backend=backend)
        return ChallengeReport.of(kept, found, backend)

    async def _leaving(self, redactor: Redactor, kept: Committed, asked: ChallengeRequest) -> ChallengeRequest:
        """What may leave: without the fields that name persons. Raises HoldsRedacted unless the policy would let both
        texts leave as they are."""
        if redactor.looks_for_names:
            raise HoldsRedacted(
                f"the policy of {kept.tenant}/{kept.project} redacts names of persons, so no text can be sent as it is"
                "; compute on this host with --cpu"
            )
        text = to_json({"model": kept.model, "prompt": asked.text or " "})
        await self._inspected(endpoints.COMPLETIONS, text, redactor, kept)
        endpoint = endpoints.CHAT if asked.path == CHAT else endpoints.COMPLETIONS
        prompt = await self._inspected(endpoint, asked.body.encode(), redactor, kept)
        return asked.model_copy(update={"body": prompt.body.decode()})

    async def _inspected(self, endpoint: Endpoint, body: bytes, redactor: Redactor, kept: Committed) -> Prompt:
        try:
            call = await self._inspection.parsed(endpoint, body, kept.tenant)
            prompt = await self._inspection.prepare(call, redactor, kept.tenant, kept.project)
        except GatewayError as error:
            raise HoldsRedacted(
                f"the texts were not sent, since they could not be inspected ({error.code or error.status})"
                "; correct the prompt, or compute on this host with --cpu"
            ) from None
        same = all(prompt.fields.get(name) == value for name, value in call.body.items() if name not in NOT_COMPARED)
        if not same:
            raise HoldsRedacted(
                f"the texts have what the policy of {kept.tenant}/{kept.project} redacts, so they are not sent to a"
                " backend; compute on this host with --cpu"
            )
        return prompt

    async def _asked(
        self, backends: Sequence[Backend], kept: Committed, asked: ChallengeRequest
    ) -> tuple[Challenged, Backend]:
        """From the first that answers. Raises NotChallengeable, also for what a backend refuses to read."""
        body = asked.model_dump_json().encode()
        for backend in backends:
            try:
                status, said = await self._fleet.ask(backend, body)
            except (GatewayError, ConnectionLost, ProtocolError, TimeoutError):
                continue
            if status == 200 and said is not None and (found := _read(said)) is not None:
                return found, backend
            if status in (400, 413) and said is not None:
                raise NotChallengeable(_refusal(said))
        raise NoBackendAllowed(
            f"no backend of {kept.model} that may read the texts is up and computes challenges; start one, or compute "
            "on this host with --cpu"
        )


def _in_order(backends: Sequence[Backend], kept: Committed, wanted: str | None) -> list[Backend]:
    """Another than the one that gave the answer first, whose word is worth more. Raises NoBackendAllowed."""
    if wanted is None:
        return sorted(backends, key=lambda each: (each.id == kept.backend_id, each.id))
    found = [each for each in backends if each.id == wanted]
    if not found:
        raise NoBackendAllowed(
            f"{wanted} is no backend of {kept.model} that may read the texts; name one of "
            f"{', '.join(sorted(each.id for each in backends))}"
        )
    return found


def _read(said: bytes) -> Challenged | None:
    try:
        return Challenged.model_validate_json(said)
    except ValidationError:
        return None


def _refusal(said: bytes) -> str:
    """The backend's sentence, which goes to the caller alone."""
    try:
        return ErrorBody.model_validate(from_json(said)).error.message
    except ValueError:
        return "the backend could not read the challenge; check the prompt"
