"""``domicile backend replay``: a kept call asked once more, and its answer compared with the one on record."""

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from gateway.cli.terminal.own_backends import backend_of, opened_upstream, target_of
from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import ACTOR, DEFAULT_DATA, AsJson, Data, Tenant, fail, needs_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from audit.private.audit_context import AuditContext
    from gateway.comparisons.replay import AnswerPieces, Difference
    from gateway.installation.installation import Installation
    from gateway.upstream.client import Target
    from regions.fleet.fleet import Backend

app = typer.Typer(name="backend")

DIFFERENT, NOT_COMPARED = 1, 2  # as cmp(1) and diff(1) have it (POSIX)
NEEDED = (
    "Answers are equal only from the same weights and, on a GPU, the same kind of card and a backend that was started"
    " with --batch-invariant both times."
)


WEIGHTS = {
    True: "By the answers' fingerprints they came from the same weights.",
    False: "By the answers' fingerprints they came from different weights.",
    None: "Whether they came from the same weights is not known: not both answers say it.",
}


@app.command("replay")
def replay(
    tenant: Tenant,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Its x-request-id, as 'req-1f0c…'.")],
    backend: Annotated[
        str | None, typer.Option(help="Ask this one, of the same region (default: the one that answered).")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Ask a server on this host instead, as http://127.0.0.1:8000.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Nats by which log probabilities may differ; not a bit by default.")
    ] = 0.0,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Send a stored call again, and compare the answer with the recorded one, token by token.

    The policy must have kept its content, and the call must have had a `seed` or `temperature` 0, with nothing
    redacted. The weights must be the same and, on a GPU, the backend started with --batch-invariant. That content is
    read goes on record first, and what came of it afterwards. Exit code 0: equal; 1: different; 2: nothing to compare.

    Example: domicile backend replay acme req-5f3a0c6be1d2498877a0b1c2 --json
    """
    from audit.cli.on_files import do
    from audit.errors import AuditError
    from gateway.database.errors import StoreError
    from gateway.errors import GatewayError
    from gateway.installation.installation import Installation, InstallationError

    if backend is not None and url is not None:
        fail("both --backend and --url are given; give one of the two", NOT_COMPARED)
    needs_folder(data)
    try:
        installation = Installation.open(data)
        done = do(data, lambda context: _replay(installation, context, tenant, request, backend, url, tolerance))
    except GatewayError as error:
        fail(f"{error.message}, so there is no answer to compare; start the backend, or name another", NOT_COMPARED)
    except (AuditError, InstallationError, StoreError, OSError) as error:
        fail(str(error), NOT_COMPARED)
    done.tell(as_json)
    if done.difference is not None:
        raise typer.Exit(DIFFERENT)


@dataclass(frozen=True, slots=True)
class Replayed:
    """`asked`: the backend's id, or the URL. `exact`: to the last bit, whatever tolerance `difference` was given.
    `same_weights`: by the answers' `fingerprints`, the kept one's and the new one's; None where they do not tell."""

    request_id: str
    asked: str
    output: "AnswerPieces"
    changed: "Sequence[tuple[int, str]]"
    exact: bool
    difference: "Difference | None"
    same_weights: bool | None
    fingerprints: tuple[str | None, str | None]

    def tell(self, as_json: bool) -> None:
        if as_json:
            print_json(
                {
                    "request_id": self.request_id,
                    "asked": self.asked,
                    "equal": self.difference is None,
                    "exact": self.exact,
                    "same_weights": self.same_weights,
                    "fingerprints": dict(zip(("kept", "now"), self.fingerprints, strict=True)),
                    "choices": len(self.output),
                    "tokens": self._tokens,
                    "model_changes": [{"seq": seq, "what": what} for seq, what in self.changed],
                    "characters": self._characters,
                    "difference": None if self.difference is None else self.difference._asdict(),
                }
            )
            return
        if self.difference is None:
            size = f"{self._tokens} tokens and log probabilities, " if self._tokens is not None else ""
            typer.echo(
                f"equal: {self.asked} gave the same {size}{self._characters} characters, {len(self.output)} choices\n"
                f"{WEIGHTS[self.same_weights]}"
            )
            return
        unit = "tokens" if self.difference.field == "logprobs" else "characters"
        typer.echo(
            f"different: choice {self.difference.choice}, {self.difference.field}, behind {self.difference.at} {unit}\n"
            f"  kept: {self.difference.was!r}\n  now:  {self.difference.now!r}\n{NEEDED}"
        )
        typer.echo(WEIGHTS[self.same_weights])
        for seq, what in self.changed:
            typer.echo(f"Since then the model is another: {what}, by record {seq}.")

    @property
    def _tokens(self) -> int | None:
        """Tokens of the kept answer; None where it has no log probabilities, by which alone tokens are known."""
        counts = [len(choice["logprobs"]) for choice in self.output if "logprobs" in choice]
        return sum(counts) if counts else None

    @property
    def _characters(self) -> int:
        fields = ("text", "content", "reasoning_content", "refusal")
        return sum(len(choice.get(field, "")) for choice in self.output for field in fields)


async def _replay(
    installation: "Installation",
    context: "AuditContext",
    tenant: str,
    request: str,
    backend: str | None,
    url: str | None,
    tolerance: float,
) -> Replayed:
    from backend.wire import same_weights
    from gateway.comparisons.replay import ask_again, first_difference, record_replay, recorded_call

    known: Backend | None = None
    if url is None:
        known = _backend(installation, tenant, backend) if backend is not None else None
    else:
        _check_local(url)
    kept = await recorded_call(context, tenant, request, actor=ACTOR)
    if url is None and known is None:
        known = _backend(installation, tenant, kept.backend_id)
    if known is not None and known.region != kept.region:
        fail(
            f"{known.id} is in {known.region}, and the call was answered in {kept.region}"
            "; name a backend of that region",
            NOT_COMPARED,
        )
    async with opened_upstream(installation, context) as upstream:
        mark_key = _mark_key(installation, tenant, kept.mark_period)
        now, fingerprint = await ask_again(upstream, _target(installation, known, url), kept, mark_key)
    exact = first_difference(kept.output, now) is None
    weights = same_weights(kept.fingerprint, fingerprint)
    await record_replay(context, kept, known, exact, weights, actor=ACTOR)
    asked = known.id if known is not None else url or ""
    difference = first_difference(kept.output, now, tolerance)
    fingerprints = kept.fingerprint, fingerprint
    return Replayed(kept.request_id, asked, kept.output, kept.changed, exact, difference, weights, fingerprints)


def _mark_key(installation: "Installation", tenant: str, period: str | None) -> bytes | None:
    """What the call was watermarked with; None where it was not."""
    from gateway.store.marks import MarkKeys

    if period is None:
        return None
    with closing(installation.database()) as database:
        found = MarkKeys(database, installation.keys).of(tenant, period)
    if found is None:
        fail(f"the key of {period}, which the answer is marked with, is gone; restore the database", NOT_COMPARED)
    return found.key


def _check_local(url: str) -> None:
    """What was kept must not leave this host for a server that no region vouches for."""
    from gateway.configuration.settings import is_loopback

    parts = urlsplit(url)
    if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
        fail("--url is for a server on this host, as http://127.0.0.1:8000; register any other", NOT_COMPARED)


def _backend(installation: "Installation", tenant: str, name: str) -> "Backend":
    with closing(installation.database()) as database:
        records = installation.inventory(database).backends(tenant)
    for record in records:
        if record.id == name and record.revoked_at is None:
            return backend_of(record)
    fail(
        f"{tenant} has no backend {name} in service; name another by --backend, or start one with the "
        "same weights and give its --url",
        NOT_COMPARED,
    )


def _target(installation: "Installation", known: "Backend | None", url: str | None) -> "Target":
    from gateway.upstream.client import Target

    if known is None:
        return Target("replay", (url or "").rstrip("/"), None)
    return target_of(installation, known)
