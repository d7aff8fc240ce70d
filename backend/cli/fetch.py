"""``domicile backend fetch``: bring a model to this host; and how `serve` finds the one that it is given by name."""

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backend.cli.errors import REFUSED, USAGE, fail

if TYPE_CHECKING:
    from backend.fetch.fetch import Fetched

ModelSha256 = Annotated[
    str | None,
    typer.Option("--model-sha256", metavar="SHA256", help="Digest that the weights must have, else it ends with 1."),
]
ModelLock = Annotated[
    Path | None, typer.Option("--model-lock", help="Lock file of `backend fetch -o`: the files that they must be.")
]
ModelCache = Annotated[
    Path | None,
    typer.Option(
        "--model-cache",
        envvar="DOMICILE_MODEL_CACHE",
        help="Folder that fetched models are kept in; default: ~/.cache/domicile/models.",
    ),
]
Offline = Annotated[
    bool,
    typer.Option(
        "--offline", envvar=["DOMICILE_OFFLINE", "HF_HUB_OFFLINE"], help="Fetch nothing: take what was fetched before."
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Write a lock file: names, sizes and digests.")]


def fetch(
    model: Annotated[str, typer.Argument(help="org/name@revision of a hub, oci://… or s3://….")],
    model_sha256: ModelSha256 = None,
    model_lock: ModelLock = None,
    model_cache: ModelCache = None,
    offline: Offline = False,
    output: Output = None,
    as_json: Annotated[bool, typer.Option("--json", help="Path and digest as JSON.")] = False,
) -> None:
    """Download a model to this host, or resume a download, and print its path and digest.

    Examples:

      domicile backend fetch Qwen/Qwen3-0.6B@main -o qwen3.lock.json

      domicile backend fetch oci://registry.lan/models/small:1 --model-lock small.lock.json
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    found = _found(model, model_sha256, model_lock, model_cache, offline)
    if found.kept is None:
        fail("that is a path of this host; name a model of a hub, a registry or a bucket", USAGE)
    manifest = found.kept.manifest
    if output is not None:
        try:
            output.write_text(manifest.text())
        except OSError as error:
            fail(f"{output} cannot be written: {error.strerror}; name another file", REFUSED)
    said = {"path": str(found.path), "sha256": manifest.sha256, "source": manifest.source}
    typer.echo(json.dumps(said) if as_json else "\n".join(f"{key:8s} {value}" for key, value in said.items()))


def fetched_model(
    model: str, sha256: str | None, lock: Path | None, cache: Path | None, offline: bool
) -> tuple[str, str]:
    """What the engine takes, and a short name; fetched if it is a name of another place. Ends the command if it cannot
    be had or is not what it has to be."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    found = _found(model, sha256, lock, cache, offline)
    return (model if found.kept is None else str(found.path)), found.name


def fetched_draft(model: str, sha256: str | None, lock: Path | None, cache: Path | None, offline: bool) -> str:
    """The same of what guesses; "" if there is none. Ends the command for a pin without it."""
    if model:
        return fetched_model(model, sha256, lock, cache, offline)[0]
    if sha256 is not None or lock is not None:
        fail("--draft-sha256 and --draft-lock are of --draft-model, which is missing; add it, or leave them out", USAGE)
    return ""


def _found(model: str, sha256: str | None, lock: Path | None, cache: Path | None, offline: bool) -> "Fetched":
    from backend.errors import BackendError
    from backend.fetch.fetch import How, default_cache, fetched
    from backend.fetch.model_manifest import read_manifest

    if sha256 is not None and (len(sha256) != 64 or sha256.strip("0123456789abcdef")):
        fail("--model-sha256 takes 64 hexadecimal digits; copy them from `backend fetch`, or from the record", USAGE)
    try:
        how = How(
            cache=(default_cache() if cache is None else cache).expanduser().absolute(),
            sha256=sha256,
            lock=None if lock is None else read_manifest(lock),
            offline=offline,
        )
        return fetched(model, how)
    except FileNotFoundError:
        fail(f"there is no lock file {lock}; write it with `domicile backend fetch -o`", USAGE)
    except BackendError as error:
        fail(error)
