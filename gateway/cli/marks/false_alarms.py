"""``domicile mark measure``: how often the tenant's own texts without marks would be said to have one."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.marks.input_text import NOT_TESTED, read_text
from gateway.cli.marks.text_tester import tester_of
from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import ACTOR, DEFAULT_DATA, AsJson, Data, Tenant, fail, needs_folder

if TYPE_CHECKING:
    from audit.private.audit_context import AuditContext

mark_app = typer.Typer(name="mark")

TOO_MANY = 1
REASON = "marks_measured"
WORDS = {
    "holds": "The stated rate of false alarms holds for these texts: {texts} of them, and {marked} would be said to be"
    " marked by the tenant's {keys} keys.",
    "too_many": "Do not decide by these keys: more of these texts raise an alarm than the stated rate allows; texts of"
    " this kind repeat themselves in a way that the test does not cover.",
    "too_few_texts": "Too few texts: {texts} are long enough to be tested, and 1,000 are needed. Do not decide by these"
    " keys yet; name --texts, or keep content for a while.",
}


@mark_app.command("measure")
def measure(
    tenant: Tenant,
    weights: Annotated[Path, typer.Option(help="The tokenizer of the marked model: its folder or GGUF file.")],
    texts: Annotated[
        list[Path] | None, typer.Option(help="Text files without marks, or folders of them, instead of what is kept.")
    ] = None,
    records: Annotated[int, typer.Option(min=1, help="Records to read at most, the newest first.")] = 2000,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Measure the rate of false alarms of watermarks over the tenant's own texts, before a key decides anything.

    Read are prompts that are kept, as people wrote them, and kept answers that no watermark was demanded of. That each
    record was read is recorded first. Each text is tested by the tenant's keys and by 8 random ones. Exit code 0: the
    stated rate holds; 1: it does not; 2: there are too few texts, or nothing could be tested.

    Example: domicile mark measure acme --weights models/writer
    """
    from audit.cli.on_files import do
    from audit.errors import AuditError
    from gateway.database.errors import StoreError
    from gateway.installation.installation import Installation, InstallationError
    from gateway.marks.false_alarms import measured
    from gateway.store.lookup import tenant as lookup_tenant_row
    from gateway.store.marks import MarkKeys

    needs_folder(data)
    test = tester_of(weights)
    try:
        installation = Installation.open(data)
        with closing(installation.database()) as database:
            with database.read() as session:
                lookup_tenant_row(session, tenant)
            keys = [each.key for each in MarkKeys(database, installation.keys).all(tenant)]
        if texts:
            found = measured(map(read_text, _files(texts)), keys, test)
        else:
            found = measured(do(data, lambda context: _kept(context, tenant, records)), keys, test)
    except (AuditError, InstallationError, StoreError, OSError) as error:
        fail(str(error), NOT_TESTED)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(WORDS[found.verdict].format(texts=found.texts, marked=found.marked, keys=found.keys))
        for level in found.levels:
            typer.echo(
                f"Random keys at {level.rate:g}: {level.alarms} alarms in {level.tests} tests, at most"
                f" {level.expected:.1f} are expected (probability of as many: {level.probability:.2g})"
            )
    if found.verdict != "holds":
        raise typer.Exit(TOO_MANY if found.verdict == "too_many" else NOT_TESTED)


def _files(given: list[Path]) -> Iterator[Path]:
    for path in given:
        yield from sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


async def _kept(context: "AuditContext", tenant: str, most: int) -> list[str]:
    """Return distinct texts of the newest records. Restricted ones and those of demanded marks are left out."""
    from audit.errors import AuditError, KeyLost, RestrictedError
    from audit.privacy.rights import read
    from gateway.marks.false_alarms import texts_of

    def newest() -> list[int]:
        with closing(context.open_values()) as side:
            seqs = {one.seq for one in side.kept(tenant) if one.field in ("input", "output")}
        return sorted(seqs, reverse=True)[:most]

    def unmarked(seqs: list[int]) -> list[int]:
        return [seq for seq, leaf in context.leaves(tenant, seqs) if getattr(leaf.event, "watermark", None) is None]

    seqs = await context.in_thread(lambda: unmarked(newest()))
    found: dict[str, None] = {}
    for seq in islice(seqs, most):
        try:
            shown = await read(context, tenant, seq, actor=ACTOR, reason=REASON, only={"input", "output"})
        except (RestrictedError, KeyLost):
            continue
        except AuditError as error:
            if "nothing is kept" in str(error):  # it expired meanwhile
                continue
            raise
        for one in shown:
            found.update(dict.fromkeys(texts_of(one.kept.field, one.value)))
    return list(found)
