"""Worker process that redacts long prompts and filters long answers; started by `gateway.content.inspection`.

Jobs arrive on stdin and results leave on stdout, each as a length of four bytes (big-endian) and a pickle. Both ends
are code of this installation, and no other process has access to the pipe. The process imports the redactor and, from
the gateway, only the answer formats. It never logs text of a job.
"""

import os
import pickle
import signal
import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, BinaryIO

from gateway.content.whole_answer import AnswerSummary, Handling, whole_answer
from gateway.errors import BackendFailed
from gateway.openai.answer import FilterFactory
from policy.errors import Finding, RedactionBlocked, RedactionError
from policy.redact.actions.plan import RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.redactor import Redactor
from policy.redact.stream import StreamFilter

LENGTH_BYTES = 4
CACHED = 64
"""Maximum number of compiled redactors in the cache."""


@dataclass(frozen=True, slots=True)
class Job:
    """Arguments of `Redactor.redact_body`. `plan`: the fields of a RedactionPlan, as plain dictionaries."""

    plan: Mapping[str, Any]
    hash_key: bytes | None
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """Parameters of an answer's output filters. `plan`: as in `Job`."""

    plan: Mapping[str, Any]
    hash_key: bytes | None
    pseudonyms: Pseudonyms


@dataclass(frozen=True, slots=True)
class AnswerJob:
    """A complete answer as received from a backend. `settings`: None if it is not filtered."""

    raw: bytes
    handling: Handling
    settings: FilterSettings | None


@dataclass(frozen=True, slots=True)
class Done:
    """A RedactedBody with plain dictionaries."""

    body: dict[str, Any]
    changed: bool
    counts: dict[str, int]
    pseudonyms: Pseudonyms


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal.

    `blocked`: findings that the policy blocks; `hint`: what to do about them. If empty, the text could not be
    inspected, for `reason`.
    """

    blocked: tuple[Finding, ...] = ()
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """A WholeAnswer. `raw`: None if the answer is unchanged. `counts`: findings by label."""

    summary: AnswerSummary
    raw: bytes | None
    texts: Mapping[int, dict[str, Any]] | None
    refused: Refused | None
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Malformed:
    """The backend's data is not a valid answer."""

    reason: str


def plain(plan: RedactionPlan) -> dict[str, Any]:
    """Return the fields of `plan` with plain dictionaries, because read-only mappings cannot be pickled."""
    values = {each.name: getattr(plan, each.name) for each in fields(plan)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


class Inspector:
    """Runs jobs, with a cache of recently used redactors."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Redactor] = OrderedDict()

    def run(self, job: Job | AnswerJob) -> Done | Answered | Refused | Malformed:
        """Run a job. Does not raise: errors become Refused or Malformed."""
        try:
            return self._answered(job) if isinstance(job, AnswerJob) else self._redacted(job)
        except RedactionError as error:
            return _refused(error)
        except BackendFailed as error:
            return Malformed(error.message)
        except Exception as error:  # the text is not known to be clean, and the error's message may quote it
            return Refused(reason=f"redaction failed with {type(error).__name__}")

    def _redacted(self, job: Job) -> Done:
        done = self._redactor(job).redact_body(*job.arguments)
        return Done(done.body, done.changed, dict(done.counts), done.pseudonyms)

    def _answered(self, job: AnswerJob) -> Answered:
        made: list[StreamFilter] = []
        make: FilterFactory | None = None
        if (settings := job.settings) is not None:
            redactor, pseudonyms = self._redactor(settings), settings.pseudonyms

            def make(json_escaped: bool) -> StreamFilter:
                made.append(redactor.stream_filter(pseudonyms, json_escaped=json_escaped))
                return made[-1]

        whole = whole_answer(job.raw, job.handling, make)
        counts: Counter[str] = Counter()
        for each in made:
            counts.update(each.counts)
        return Answered(
            whole.summary,
            None if whole.raw is job.raw else whole.raw,
            whole.texts,
            None if whole.refusal is None else _refused(whole.refusal),
            dict(counts),
        )

    def _redactor(self, settings: Job | FilterSettings) -> Redactor:
        key = pickle.dumps((settings.plan, settings.hash_key))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Redactor(RedactionPlan(**settings.plan), hash_key=settings.hash_key)
            if len(self._known) > CACHED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known


def _refused(error: RedactionError) -> Refused:
    if isinstance(error, RedactionBlocked):
        return Refused(tuple(error.findings), hint=error.hint)
    return Refused(reason=str(error))


def framed(message: object) -> bytes:
    """Return `message` pickled, with its length in front."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(LENGTH_BYTES) + content


def serve(jobs: BinaryIO, results: BinaryIO) -> None:
    """Process jobs until `jobs` ends."""
    inspector = Inspector()
    while len(head := jobs.read(LENGTH_BYTES)) == LENGTH_BYTES:
        job = pickle.loads(jobs.read(int.from_bytes(head)))  # noqa: S301  # from the gateway that started this process
        results.write(framed(inspector.run(job)))
        results.flush()


def main() -> None:
    """Run the worker on stdin and stdout."""
    # The gateway stops this process after its running answers have finished
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)  # the gateway's event loop has priority: other tenants wait for it
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a library must not be taken for a result
    serve(sys.stdin.buffer, results)
