"""Search for person names in prompts: a process pool with one model each, a cache per tenant, and a time budget.

A chat repeats its history with every turn, so most texts are in the cache. The cache identifies a text only by a keyed
hash whose key exists only in this process. If the search exceeds the budget or fails, the call is refused: no
uninspected text is sent.
"""

import asyncio
import hmac
import multiprocessing
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from hashlib import sha256
from secrets import token_bytes
from types import TracebackType
from typing import Self

from gateway.configuration.settings import Names
from gateway.errors import RedactionRefused
from gateway.openai.checked_call import IDENTIFYING_FIELDS, Call
from policy.errors import RedactionError
from policy.redact.names.ner import NameModel
from policy.redact.redactor import NamesByText, Redactor

Spans = tuple[tuple[int, int], ...]

_model: NameModel | None = None  # set in the processes of the pool


class NameFinder:
    """Finds person names. Use as an asynchronous context manager; processes start with the first text that needs them.

    Args:
        settings: number of processes, seconds and characters per request, cached texts per tenant.
        executor: executor to use instead (tests).
    """

    def __init__(self, settings: Names, executor: Executor | None = None) -> None:
        self._settings = settings
        self._executor = executor
        self._salt = token_bytes(32)
        self._known: dict[str, OrderedDict[bytes, Spans]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def names_in(self, call: Call, redactor: Redactor, tenant: str) -> NamesByText | None:
        """Return the spans of names in every text of `call`; None if the policy does not require it.

        Raises RedactionRefused if a text cannot be searched, or not in time.
        """
        if not redactor.looks_for_names:
            return None
        fields = {name: value for name, value in call.body.items() if name not in IDENTIFYING_FIELDS}
        try:
            texts = await asyncio.to_thread(redactor.texts, fields, call.endpoint.layout)
        except RedactionError:
            return {}  # redaction will raise the same error with its reason
        if sum(map(len, texts)) > (most := self._settings.max_characters):
            raise RedactionRefused(
                f"At most {most} characters are searched for names; the request is longer and was not sent",
                code="redaction_too_long",
            )
        try:
            async with asyncio.timeout(self._settings.budget_s):
                return await self._find(tenant, texts)
        except TimeoutError:
            raise RedactionRefused(
                "The search for names took too long; the request was not sent", code="redaction_timeout"
            ) from None
        except Exception as error:  # a process crashed, or the model is not installed
            self._executor = None if self._is_ours else self._executor
            said = str(error) if isinstance(error, RedactionError) else type(error).__name__
            raise RedactionRefused(
                f"The search for names failed, and the request was not sent: {said}; try again, or ask the operator"
            ) from None

    @property
    def _is_ours(self) -> bool:
        return isinstance(self._executor, ProcessPoolExecutor)

    async def _find(self, tenant: str, texts: Sequence[str]) -> Mapping[str, Spans]:
        known = self._known.setdefault(tenant, OrderedDict())
        found: dict[str, Spans] = {}
        for text, key in [(text, self._key(tenant, text)) for text in texts]:
            if not any(map(str.isalpha, text)):
                found[text] = ()
            elif (spans := known.get(key)) is not None:
                known.move_to_end(key)
                found[text] = spans
        unknown = [text for text in texts if text not in found]
        if unknown:
            loop = asyncio.get_running_loop()
            pool = self._pool()
            for text, spans in zip(
                unknown,
                await asyncio.gather(*(loop.run_in_executor(pool, _names, text) for text in unknown)),
                strict=True,
            ):
                found[text] = known[self._key(tenant, text)] = spans
            while len(known) > self._settings.cached_texts:
                known.popitem(last=False)
        return found

    def _pool(self) -> Executor:
        if self._executor is None:
            context = multiprocessing.get_context("spawn")  # a fork would copy sockets and threads
            self._executor = ProcessPoolExecutor(self._settings.processes, context, initializer=_load)
        return self._executor

    def _key(self, tenant: str, text: str) -> bytes:
        return hmac.digest(self._salt, tenant.encode() + b"\0" + text.encode("utf-8", "surrogatepass"), sha256)


def _load() -> None:
    global _model  # one model per process, loaded once
    _model = NameModel()


def _names(text: str) -> Spans:
    if _model is None:
        _load()
    return tuple((name.start, name.end) for name in _model.find(text)) if _model else ()
