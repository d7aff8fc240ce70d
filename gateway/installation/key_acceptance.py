"""Acceptance of a key that was replaced on purpose, such as an authority of the organisation's own.

Folder and control database keep fingerprints of the keys (`gateway.installation.key_fingerprints`); every command and
gateway refuses another key until this has recorded the change and taken its fingerprint over.
"""

from collections.abc import Callable
from contextlib import closing

from audit.events.anchor import KeyAccepted
from gateway.database.ownership import accept_key
from gateway.installation.installation import Installation, InstallationError
from gateway.installation.key_fingerprints import fingerprint_of, has_fingerprint, is_shared

Record = Callable[[KeyAccepted], object]
"""Makes the event durable, or raises: then nothing is changed."""


def accept(installation: Installation, name: str, record: Record, actor: str) -> str:
    """From now on the content of the file `name` of the data folder is that key of the installation; its fingerprint.

    `installation` was opened with `accepting` it. Raises InstallationError if it is no such key or not there,
    KeyProviderError, OSError, AuditError.
    """
    file = installation.data / name
    if not has_fingerprint(name):
        raise InstallationError(
            f"{name!r} is not a key that can be accepted; name its path in the data folder, as secrets/redaction or"
            " ca/ca.key"
        )
    if not file.exists():
        raise InstallationError(f"there is no {file}; put the new key there first")
    content = installation.secret_files.read(file)
    fingerprint = fingerprint_of(name, content)
    if fingerprint is None:
        raise InstallationError(f"{file} is sealed for another installation; put the key itself there")
    with closing(installation.database_of_any_keys()) as database:
        record(KeyAccepted(actor=actor, key=name.replace("/", "."), fingerprint=fingerprint))
        if is_shared(name):
            accept_key(database, name, fingerprint)
        installation.inventory_of_files.accept(name, content)
    return fingerprint
