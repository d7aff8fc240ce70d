"""Self-tests of the record's safeguards at intervals, each result recorded (GDPR 32(1)(d), ISO 27001 A.8.34).

log_verify       every tree, rebuilt from its leaves and held against its checkpoints
private_values   every commitment accounted for: kept, or erased under a certificate that the tree vouches for
erased_keys      no data key of a certificate is there any more, nor a value under it: what was erased stays so
restore          a copy, made while the log is written, verifies by itself and reaches as far as what was signed
"""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from audit.errors import AuditError, StoreError
from audit.events.event import SystemSelftest
from audit.keys.signer import key_of
from audit.private.audit_context import AuditContext
from audit.private.certificate import open_certificate
from audit.private.deletion import certificates_of
from audit.private.value_store import ValueStore
from audit.storage.sqlite import SqliteReader
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import origin_of
from audit.verification.disclosure import account
from audit.verification.verify import verify_log

MAX_SAID = 5


@dataclass(frozen=True, slots=True)
class SelftestResult:
    """`says`: what is wrong, or what was looked at."""

    check: str
    passed: bool
    says: str


async def selftest(context: AuditContext, log: Path | None = None) -> list[SelftestResult]:
    """Run all self-tests and record each result. `log`: the file of the log, if any; without it nothing is restored."""
    key = key_of(context.signer)
    checks: list[tuple[str, Callable[[], str]]] = [
        ("log_verify", lambda: _verifies(context, key)),
        ("private_values", lambda: _accounted(context, key)),
        ("erased_keys", lambda: _stay_erased(context, key)),
    ]
    if log is not None:
        checks.append(("restore", lambda: _restores(log, key)))
    outcomes = []
    for name, check in checks:
        outcome = await context.in_thread(lambda name=name, check=check: _outcome_of(name, check))  # type: ignore[misc]
        await context.record(SystemSelftest(check=outcome.check, passed=outcome.passed))
        outcomes.append(outcome)
    return outcomes


def _outcome_of(name: str, check: Callable[[], str]) -> SelftestResult:
    try:
        return SelftestResult(name, True, check())
    except AuditError as error:
        return SelftestResult(name, False, str(error))


def _verifies(context: AuditContext, key: VerifierKey) -> str:
    with context.reading() as reader:
        report = verify_log(reader, key)
    if not report.ok:
        raise AuditError("; ".join(f"{one.tenant}: {one.says}" for one in report.findings[:MAX_SAID]))
    return f"{sum(tree.records for tree in report.trees)} records of {len(report.trees)} trees"


def _accounted(context: AuditContext, key: VerifierKey) -> str:
    total = 0
    with closing(context.open_values()) as side:
        for tenant in _tenants(context):
            states, faults = account(context.open_reader, side, key, tenant)
            if faults:
                raise AuditError("; ".join(f"{tenant}, record {one.seq}: {one.because}" for one in faults[:MAX_SAID]))
            total += sum(states.values())
    return f"{total} private values and expired records"


def _stay_erased(context: AuditContext, key: VerifierKey) -> str:
    with closing(context.open_values()) as side:
        keys = [one for tenant in _tenants(context) for one in _destroyed(side, key, tenant)]
        for key_id in keys:
            there = "SELECT 1 FROM data_key WHERE id = ? UNION ALL SELECT 1 FROM value WHERE key_id = ?"
            if side.rows(there, (key_id, key_id)):
                raise AuditError(f"key {key_id} was destroyed under a certificate and is there again; destroy it again")
    return f"{len(keys)} keys that were destroyed"


def _destroyed(side: ValueStore, key: VerifierKey, tenant: str) -> Iterator[str]:
    for note in certificates_of(side, tenant):
        for trusted in key.public_keys:
            try:
                yield from open_certificate(note, origin_of(key.name, tenant), trusted).keys_destroyed
            except AuditError:
                continue
            break
        else:
            raise AuditError(f"a certificate of {tenant} is not signed by the log; run `domicile audit verify`")


def _restores(log: Path, key: VerifierKey) -> str:
    """Raises StoreError for want of space, too: then a restore would have failed as well."""
    with tempfile.TemporaryDirectory(dir=log.parent, prefix=".restore-") as folder:
        copy = Path(folder) / log.name
        try:
            with closing(sqlite3.connect(f"file:{log}?mode=ro", uri=True)) as db, closing(sqlite3.connect(copy)) as to:
                db.backup(to)
        except sqlite3.Error as error:
            raise StoreError(f"the log cannot be copied: {error}; free space in the temporary folder") from error
        with closing(SqliteReader.open(copy)) as reader:
            report = verify_log(reader, key)
    if not report.ok:
        raise AuditError("; ".join(f"{one.tenant}: {one.says}" for one in report.findings[:MAX_SAID]))
    return f"a copy of {sum(tree.records for tree in report.trees)} records"


def _tenants(context: AuditContext) -> list[str]:
    with context.reading() as reader:
        return reader.tenants()
