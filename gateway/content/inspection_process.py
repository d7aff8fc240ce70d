"""A process that redacts long prompts and filters long answers, started by `gateway.content.inspection`.

Jobs come on stdin and results leave on stdout, each as four bytes of length (big-endian) and a pickle; both ends are
this installation's own code, and the pipe is theirs alone. It imports the redactor and nothing of the gateway. No text
of a job is ever logged.
"""

import os
import pickle
import signal
import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, BinaryIO

from policy.errors import Finding, RedactionBlocked, RedactionError
from policy.redact.actions.plan import RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.redactor import Redactor

LENGTH_BYTES = 4
CACHED = 64
"""Redactors that are kept compiled."""


@dataclass(frozen=True, slots=True)
class Job:
    """What `Redactor.redact_body` is called with. `plan`: the fields of a RedactionPlan, with plain dictionaries."""

    plan: Mapping[str, Any]
    hash_key: bytes | None
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class AnswerJob:
    """The texts of an answer for the output filter, each with whether it is JSON itself (tool-call arguments)."""

    plan: Mapping[str, Any]
    hash_key: bytes | None
    pseudonyms: Pseudonyms
    texts: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class Filtered:
    """The texts of an answer as they may be sent, in order. `counts`: findings by label."""

    texts: tuple[str, ...]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Done:
    """A RedactedBody, with plain dictionaries."""

    body: dict[str, Any]
    changed: bool
    counts: dict[str, int]
    pseudonyms: Pseudonyms


@dataclass(frozen=True, slots=True)
class Refused:
    """`blocked`: what the policy does not let pass; empty where the text could not be inspected, for `reason`."""

    blocked: tuple[Finding, ...] = ()
    reason: str = ""


def plain(plan: RedactionPlan) -> dict[str, Any]:
    """`plan` without read-only mappings, which cannot be pickled."""
    values = {each.name: getattr(plan, each.name) for each in fields(plan)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


class Inspector:
    """Runs jobs, with the redactors of the plans it has seen last."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Redactor] = OrderedDict()

    def run(self, job: Job | AnswerJob) -> Done | Filtered | Refused:
        try:
            redactor = self._redactor(job)
            return _filtered(redactor, job) if isinstance(job, AnswerJob) else _redacted(redactor, job)
        except RedactionBlocked as error:
            return Refused(tuple(error.findings))
        except RedactionError as error:
            return Refused(reason=str(error))
        except Exception as error:  # whatever it is, the text is not known to be clean; its message may quote it
            return Refused(reason=f"redaction failed with {type(error).__name__}")

    def _redactor(self, job: Job | AnswerJob) -> Redactor:
        key = pickle.dumps((job.plan, job.hash_key))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Redactor(RedactionPlan(**job.plan), hash_key=job.hash_key)
            if len(self._known) > CACHED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known


def _redacted(redactor: Redactor, job: Job) -> Done:
    done = redactor.redact_body(*job.arguments)
    return Done(done.body, done.changed, dict(done.counts), done.pseudonyms)


def _filtered(redactor: Redactor, job: AnswerJob) -> Filtered:
    texts: list[str] = []
    counts: Counter[str] = Counter()
    for text, is_json in job.texts:
        each = redactor.stream_filter(job.pseudonyms, json_escaped=is_json)
        texts.append(each.feed(text) + each.flush())
        counts.update(each.counts)
    return Filtered(tuple(texts), dict(counts))


def framed(message: object) -> bytes:
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(LENGTH_BYTES) + content


def serve(jobs: BinaryIO, results: BinaryIO) -> None:
    """Until `jobs` ends."""
    inspector = Inspector()
    while len(head := jobs.read(LENGTH_BYTES)) == LENGTH_BYTES:
        job = pickle.loads(jobs.read(int.from_bytes(head)))  # noqa: S301  # from the gateway that started this
        results.write(framed(inspector.run(job)))
        results.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway ends it, once its running answers are finished
    os.nice(5)  # the gateway's event loop goes first: other tenants wait for that
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no result
    serve(sys.stdin.buffer, results)
