"""Rotate the pepper of key hashes, in two steps that may each be repeated after a crash.

A hash cannot be recomputed without its key, so both generations are valid for a while: `begin_rotation` makes the next,
every key that is used is then rehashed (by the directory, in batches), and `end_rotation` deletes the old one once
`remaining` counts no living key that depends on it.

    PepperError
    ├── RotationBegun another rotation is under way
    └── StillNeeded   living keys are hashed under the old pepper; gives their number
"""

import secrets
from pathlib import Path

from audit.files.secret_file import shred_secret
from gateway.identity.keys import PEPPER_SIZE, KeyHasher, pepper_files, promote, staged_pepper
from regions.identity.encrypted_file import PLAIN, SecretFiles


class PepperError(Exception):
    """The pepper cannot be rotated now."""


class RotationBegun(PepperError):
    """Another rotation is under way."""


class StillNeeded(PepperError):
    """Living keys are hashed under the old pepper."""


def stage_rotation(path: Path, files: SecretFiles = PLAIN) -> int:
    """Make the next pepper and do not use it yet, so that it can be carried to other hosts; its number.

    Raises RotationBegun if one is in force already that not all keys are hashed under.
    """
    newest = KeyHasher.open(path, files).generation
    if newest - 1 in pepper_files(path):
        raise RotationBegun(f"generation {newest} of the pepper is in force already; end that rotation with --finish")
    files.create(staged_pepper(path, newest + 1), secrets.token_bytes(PEPPER_SIZE))
    return newest + 1


def begin_rotation(path: Path, files: SecretFiles = PLAIN, *, used: int = 1) -> int:
    """The number of the new generation; that of the one being rotated to, if a rotation has begun already.

    A staged pepper is taken, else one is made. `used`: the newest generation that a stored hash is under. Raises
    RotationBegun if that is one of another host that is not here.
    """
    newest = KeyHasher.open(path, files).generation
    if staged_pepper(path, newest + 1).exists():
        promote(path, newest + 1, files)
        return newest + 1
    if used > newest:
        raise RotationBegun(
            f"keys are hashed under generation {used} of the pepper, which another host made; take its key set over"
            " with: domicile init --keys"
        )
    if newest - 1 in pepper_files(path):
        return newest
    files.create(path.with_name(f"{path.name}.{newest + 1}"), secrets.token_bytes(PEPPER_SIZE))
    return newest + 1


def end_rotation(path: Path, remaining: int, files: SecretFiles = PLAIN) -> int:
    """Delete the old pepper, if there is one; the number of the one that stays.

    `remaining`: living keys hashed under the old one. Raises StillNeeded if there are any.
    """
    peppers = pepper_files(path)
    newest = KeyHasher.open(path, files).generation
    if newest - 1 in peppers:
        if remaining:
            raise StillNeeded(
                f"{remaining} keys that were not used since the rotation began still need the old pepper; "
                "rotate or revoke them, or wait until they are used"
            )
        shred_secret(peppers[newest - 1])
    return newest
