"""Takes a key set over into a data folder that may hold an older or a newer generation of the same installation's keys.

Whether both are of one installation is proven by the keys that sign the record: equal, or linked by successions, each
signed by the key before and the key after it. Then newer generations are added, and what the folder has newer is kept.
Everything is checked before the first file is written, so a refused key set changes nothing.

    audit/signer.key     replaced by its successor; kept where the folder's is the successor
    audit/signer.vkey    the same, of a key in Vault; the file of a key that it succeeds is destroyed
    audit/succession/*   added
    audit/keys/root.key* versions are added; one that both hold must be the same
    audit/keys/*.kek     added where the folder has none: a tenant's key is the folder's own, as its value store is
    secrets/pepper*      generations are added; those that a finished rotation left behind are destroyed
    secrets/backends/*   replaced: what other people's servers ask for has no generations
    everything else      must be the same
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from audit.errors import NoteError, SignerError
from audit.files.secret_file import read_secret, shred_secret, write_secret
from audit.keys.signer import FileSigner, write_vkey
from audit.keys.succession import notes_in, successors
from audit.tree.note import VerifierKey
from gateway.installation.file_inventory import FileInventory
from gateway.installation.installation import InstallationError
from regions.identity.encrypted_file import is_sealed_content

SIGNER = "audit/signer.key"
VERIFIER = "audit/signer.vkey"

_ROOT = re.compile(r"audit/keys/root\.key(?:\.([1-9][0-9]*))?")
_PEPPER = re.compile(r"secrets/pepper(?:\.([1-9][0-9]*))?(\.staged)?")


@dataclass
class _Plan:
    """What is to be written, in order: notes and keys first, the signer last. `gone`: files to destroy after that."""

    data: Path
    given: Mapping[str, bytes]
    write: dict[str, bytes] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)

    def held(self, path: str) -> bytes | None:
        file = self.data / path
        if path == VERIFIER:  # it is public
            return file.read_bytes() if file.is_file() else None
        return read_secret(file) if file.exists() or file.is_symlink() else None

    def lost(self, path: str) -> bool:
        """Whether the folder had the file and it was not destroyed on purpose."""
        return FileInventory(self.data).lists(self.data / path)

    def refuse(self, path: str, why: str) -> InstallationError:
        return InstallationError(f"{self.data / path} is there already and differs: {why}")


def take_over(data: Path, given: Mapping[str, bytes]) -> list[str]:
    """Put the key set `given` (content by path in the data folder) into `data`; returns its paths, sorted.

    Raises InstallationError if it is of another installation or contradicts what is there, LoosePermissions for a file
    there that others may touch; then nothing was written.
    """
    plan = _Plan(data, given)
    _same_cell(plan)
    newer, public = _signer(plan), _verifier(plan)
    for path in sorted(given):
        next(rule for pattern, rule in _RULES if pattern(path))(plan, path)
    if differing := FileInventory(data).differing(plan.write):
        raise InstallationError(
            f"the key set is not this folder's: its {', '.join(differing)} differs from the key that {data} has used;"
            " use the key set that this installation exported"
        )
    for path, content in plan.write.items():
        if path != SIGNER:
            write_secret(data / path, content)
    with FileInventory(data).removing(plan.gone):
        for path in plan.gone:
            shred_secret(data / path)
    if newer is not None:
        write_secret(data / SIGNER, plan.write[SIGNER])
        write_vkey(data / SIGNER, newer.verifier_key)
    if public is not None:
        write_vkey(data / SIGNER, public)
    return sorted(given)


def _same_cell(plan: _Plan) -> None:
    held = plan.held("cell")
    if held is not None and held.strip() != plan.given["cell"].strip():
        raise InstallationError(
            f"{plan.data} belongs to cell {held.decode().strip()!r}, the key set to cell"
            f" {plan.given['cell'].decode(errors='replace').strip()!r}; name that cell's data folder by --data"
        )


def _signer(plan: _Plan) -> FileSigner | None:
    """The signer to put in place, None where the folder's stays. Raises InstallationError if the two are not kin."""
    given, held = plan.given.get(SIGNER), plan.held(SIGNER)
    if given is None or given == held:
        return None
    try:
        new = FileSigner.parse(given.decode("ascii"), plan.data / SIGNER)
    except (SignerError, UnicodeDecodeError) as error:
        raise InstallationError(f"the key set cannot be used: {error}; restore the key set from a backup") from error
    if not _takes_over(plan, SIGNER, new.verifier_key):
        return None
    plan.write[SIGNER] = given
    return new


def _verifier(plan: _Plan) -> VerifierKey | None:
    """The verifier key to put in place of a key that is in Vault, None where the folder's stays."""
    if (given := plan.given.get(VERIFIER)) is None:
        return None
    try:
        new = VerifierKey.parse(given.decode("ascii"))
    except (NoteError, UnicodeDecodeError) as error:
        raise InstallationError(
            f"the key set cannot be used: {VERIFIER}: {error}; restore the key set from a backup"
        ) from error
    if not _takes_over(plan, VERIFIER, new):
        return None
    if plan.held(SIGNER) is not None:
        plan.gone.append(SIGNER)
    return new


def _takes_over(plan: _Plan, path: str, new: VerifierKey) -> bool:
    """Whether `new` is to sign from now on: the folder has no key, or one that `new` succeeds; False where the folder's
    is the same or the successor. Raises InstallationError if no succession links the two."""
    try:
        if (old := _key_of_folder(plan)) is None:
            return True
        if old == new:
            return path == SIGNER and plan.held(SIGNER) is None  # the file was lost
        notes = {note.decode() for name, note in plan.given.items() if name.startswith("audit/succession/")}
        notes |= set(notes_in((plan.data / SIGNER).parent))
        if old.name == new.name and new.public_key in successors(old.public_key, old.name, notes):
            return True
        if old.name == new.name and old.public_key in successors(new.public_key, new.name, notes):
            return False
    except (SignerError, NoteError, UnicodeDecodeError) as error:
        raise InstallationError(f"the key set cannot be used: {error}; restore the key set from a backup") from error
    raise plan.refuse(
        path,
        "it is the key of another installation, and no succession links the two; use the key set that this"
        " installation exported, or another folder by --data",
    )


def _key_of_folder(plan: _Plan) -> VerifierKey | None:
    """Signer of the key in the folder, else the one that its verifier key names. Raises SignerError, NoteError."""
    if (held := plan.held(SIGNER)) is not None:
        return FileSigner.parse(held.decode("ascii"), plan.data / SIGNER).verifier_key
    public = plan.held(VERIFIER)
    return None if public is None else VerifierKey.parse(public.decode("ascii"))


def _taken_care_of(plan: _Plan, path: str) -> None:
    """The signer was judged first."""


def _add(plan: _Plan, path: str) -> None:
    if plan.held(path) is None:
        plan.write[path] = plan.given[path]


def _replace(plan: _Plan, path: str) -> None:
    if plan.held(path) != plan.given[path]:
        plan.write[path] = plan.given[path]


def _same(plan: _Plan, path: str) -> None:
    held = plan.held(path)
    if held is None:
        plan.write[path] = plan.given[path]
    elif held != plan.given[path] and not (is_sealed_content(held) and is_sealed_content(plan.given[path])):
        raise plan.refuse(path, "it is the key of another installation; use the key set that this one exported")


def _root(plan: _Plan, path: str) -> None:
    version = _number(_ROOT, path)
    held = [_number(_ROOT, each) for each in _names(plan.data, "audit/keys", "root.key*") if _ROOT.fullmatch(each)]
    if held and version < min(held) and not plan.lost(path):
        return  # retired here
    if (kept := plan.held(path)) is not None and kept != plan.given[path]:
        raise plan.refuse(
            path,
            f"both hosts made version {version} of the root key; take over the one of the host that rotated first,"
            " and move the other's aside after: domicile secrets rewrap",
        )
    _add(plan, path)


def _pepper(plan: _Plan, path: str) -> None:
    number, kept = _number(_PEPPER, path), _kept_pepper(plan, path)
    if kept is not None and kept != plan.given[path] and not is_sealed_content(kept):
        raise plan.refuse(
            path,
            f"generation {number} of the pepper was made on two hosts, or it is another installation's; use the key"
            " set of the host that began the rotation",
        )
    held = _peppers_in_use(_names(plan.data, "secrets", "pepper*"))
    if held and number < min(held) and not plan.lost(path):
        return  # a finished rotation left it behind
    if path.endswith(".staged"):
        if kept is None:
            plan.write[path] = plan.given[path]
        return
    _add(plan, path)
    if plan.held(f"{path}.staged") is not None:
        plan.gone.append(f"{path}.staged")
    if number == max(_peppers_in_use(plan.given)):
        plan.gone += [_pepper_path(each) for each in held if each < number - 1]


def _kept_pepper(plan: _Plan, path: str) -> bytes | None:
    """The folder's pepper of the generation that `path` holds, in use or else staged; None where it has neither."""
    base = path.removesuffix(".staged")
    in_use = plan.held(base)
    return in_use if in_use is not None else plan.held(f"{base}.staged")


def _peppers_in_use(paths: Iterable[str]) -> list[int]:
    """The generations of the pepper among `paths`, without those that are only staged."""
    return [_number(_PEPPER, each) for each in paths if _PEPPER.fullmatch(each) and not each.endswith(".staged")]


def _number(pattern: re.Pattern[str], path: str) -> int:
    match = pattern.fullmatch(path)
    return int(match[1] or 1) if match is not None else 1


def _pepper_path(number: int) -> str:
    return "secrets/pepper" if number == 1 else f"secrets/pepper.{number}"


def _names(data: Path, folder: str, pattern: str) -> list[str]:
    return [f"{folder}/{file.name}" for file in (data / folder).glob(pattern)]


_Rule = Callable[[_Plan, str], None]
_RULES: tuple[tuple[Callable[[str], object], _Rule], ...] = (
    (lambda path: path in (SIGNER, VERIFIER), _taken_care_of),
    (lambda path: path == "cell", _add),
    (lambda path: path.startswith("audit/succession/"), _add),
    (_ROOT.fullmatch, _root),
    (lambda path: path.startswith("audit/keys/"), _add),
    (_PEPPER.fullmatch, _pepper),
    (lambda path: path.startswith("secrets/backends/"), _replace),
    (lambda path: True, _same),
)
