"""``domicile evidence``: verify the hardware evidence of backends in a pack again, without a network."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from gateway.cli.terminal.printing import print_table
from gateway.cli.terminal.shell import USAGE, AsJson, fail

evidence_app = typer.Typer(
    name="evidence", help="Evidence of backends' hardware: check it again.", no_args_is_help=True
)
COLUMNS = ("seq", "backend_id", "technology", "holds", "measurement", "why")
EVENTS = "events.jsonl"


class Rechecked(BaseModel):
    """Result for one piece of evidence, with the reason of a failure."""

    seq: int
    ts: str
    backend_id: str
    technology: str
    holds: bool
    measurement: str
    weights_sha256: str
    why: str = ""


@evidence_app.command("verify")
def verify(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="An evidence pack, or the folder it was unpacked to.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="YAML with a section `attestation` of yours: roots, measurements."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify all hardware evidence in a pack: signature, chain to the vendor's root, nonce, TLS key, weights.

    Without --config, recorded measurements are accepted: compare them with those of the image that you expect. Run
    verify.py of the pack first, which verifies the records themselves. Exit code 1: a piece of evidence is invalid.

    Example: domicile evidence verify acme-2026-11.zip -c mine.yaml
    """
    from regions.evidence.attestation import Reference
    from regions.evidence.errors import EvidenceRefused
    from regions.evidence.recheck import rechecked
    from regions.evidence.roots import ROOTS

    references: dict[Any, Reference] = {name: Reference(roots=roots) for name, roots in ROOTS.items()}
    references |= _configured(config)
    found = []
    for seq, event in _attested(pack):
        about = {name: str(event.get(name, "")) for name in ("ts", "backend_id", "technology", "measurement")}
        weights = str(event.get("weights_sha256", ""))
        try:
            rechecked(event, references)
            found.append(Rechecked(seq=seq, holds=True, weights_sha256=weights, **about))
        except EvidenceRefused as refused:
            found.append(Rechecked(seq=seq, holds=False, weights_sha256=weights, why=str(refused), **about))
    print_table(found, COLUMNS, as_json)
    if not all(each.holds for each in found):
        raise typer.Exit(1)


def _configured(config: Path | None) -> dict[Any, Any]:
    """Return the section of the configuration file. Ends the command if the file is invalid."""
    if config is None:
        return {}
    import yaml
    from pydantic import ValidationError

    from audit.files.reasons import describe_os_error
    from gateway.configuration.settings import Attestation
    from gateway.directory.references import references_of
    from policy.errors import invalid_value
    from regions.evidence.errors import EvidenceRefused

    try:
        said = yaml.safe_load(config.read_text(encoding="utf-8")) or {}
        return dict(references_of(Attestation.model_validate(said.get("attestation", {}))))
    except ValidationError as error:
        fail(f"{config}: {invalid_value(error.errors()[0])}; correct its section `attestation`", USAGE)
    except OSError as error:
        if error.filename == str(config):
            fail(describe_os_error(error), USAGE)
        fail(f"{config} names a file that cannot be read ({error.strerror}); correct its section `attestation`", USAGE)
    except (ValueError, AttributeError, yaml.YAMLError, EvidenceRefused) as error:
        fail(f"{config} cannot be used: {type(error).__name__}: {error}; correct its section `attestation`", USAGE)


def _attested(pack: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the attestation records with their numbers. Ends the command if `pack` is not a pack."""
    try:
        first = int(json.loads(_read(pack, "manifest.json"))["first"])
        for at, line in enumerate(_read(pack, EVENTS).splitlines()):
            if b'"backend.attested"' in line:
                event = json.loads(line)
                if event.get("type") == "backend.attested":
                    yield first + at, event
    except (OSError, KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        fail(f"{pack} is no evidence pack: {type(error).__name__}; export one with `domicile audit export`", USAGE)


def _read(pack: Path, name: str) -> bytes:
    if pack.is_dir():
        return (pack / name).read_bytes()
    with zipfile.ZipFile(pack) as archive:
        return archive.read(name)
