"""The policies of an evidence pack: every version, what was in force together, and which record announced it.

`verify.py` looks each call's `policy_hash` up in these files, so they name what an auditor needs to follow: the text of
each version, its time, and what the versions made together.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from audit.incidents.pack_inputs import OPERATOR_SCOPE, Evidence, Part, Policy, Ruling

ACTIVATED = "admin.policy.activated"

Activation = Mapping[str, Any]
"""An `admin.policy.` record as JSON, with its `seq` and `ts`."""


def policy_files(activations: Sequence[Activation], evidence: Evidence) -> dict[str, str]:
    made = [one.model_dump(mode="json") for one in (*evidence.rulings, *_announced(activations, evidence))]
    return {
        "policy_history.json": _json(_history(activations, evidence)),
        "policies_in_force.json": _json(made),
    }


def unknown_calls(calls: Counter[str], activations: Sequence[Activation], evidence: Evidence) -> int:
    """Return how many calls, by policy hash, were decided by a policy that the pack does not hold."""
    known = {one.policy_hash for one in (*evidence.rulings, *_announced(activations, evidence))}
    return sum(number for name, number in calls.items() if name not in known)


def _history(activations: Sequence[Activation], evidence: Evidence) -> list[dict[str, Any]]:
    """Every version that the register holds, with the records that activated it, when it was in force, and the lines
    that it changed. An activation on record whose text is not in the register is reported as such."""
    told, last, matched = [], dict[str, dict[str, Any]](), set[int]()
    for policy in sorted(evidence.policies, key=lambda one: (one.scope, one.number)):
        records = [one for one in activations if _is_of(one, policy)]
        matched.update(one["seq"] for one in records)
        before = last.get(policy.scope)
        one = policy.model_dump(mode="json") | {
            "in_force_until": "",
            "records": [record["seq"] for record in records],
            "diff": _diff(before["text"] if before else "", policy.text),
        }
        if before is not None:
            before["in_force_until"] = policy.activated_at
        last[policy.scope] = one
        told.append(one)
    return told + [dict(one) for one in activations if one["seq"] not in matched]


def _is_of(record: Activation, policy: Policy) -> bool:
    """An activation is of one version of one scope; an earlier step of its life is known by its text alone."""
    detail = record.get("detail", {})
    if detail.get("sha256", record.get("after")) != policy.sha256 or policy.scope == OPERATOR_SCOPE:
        return False
    exact = record["type"] == ACTIVATED and "number" in detail
    return not exact or (record.get("project") or "", detail["number"]) == (policy.scope, str(policy.number))


def _announced(activations: Sequence[Activation], evidence: Evidence) -> Iterator[Ruling]:
    """What a record says that a version made when it was activated, where that cannot be made any more: what the
    version extends has become another."""
    known = {one.policy_hash for one in evidence.rulings}
    for record in activations:
        detail, scope = record.get("detail", {}), record.get("project") or ""
        if record["type"] != ACTIVATED or detail.get("policy_hash", "") in known | {""}:
            continue
        parts = [_in_force(evidence.policies, one, record["ts"]) for one in {OPERATOR_SCOPE: 0, "": 0, scope: 0}]
        made = next((one for one in evidence.policies if one.scope == scope and _is_of(record, one)), None)
        if made is None:
            continue
        yield Ruling(
            policy_hash=detail["policy_hash"],
            policy_id=detail["policy_id"],
            policy_version=detail["policy_version"],
            canonical="",
            made_of=tuple(
                Part(scope=one.scope, number=one.number, sha256=one.sha256)
                for one in (*(part for part in parts if part is not None and part.scope != scope), made)
            ),
        )


def _in_force(policies: Sequence[Policy], scope: str, ts: str) -> Policy | None:
    before = [one for one in policies if one.scope == scope and one.activated_at <= ts]
    return max(before, key=lambda one: one.number, default=None)


def _diff(before: str, after: str) -> list[str]:
    old, new = before.splitlines(), after.splitlines()
    gone, come = set(old) - set(new), set(new) - set(old)
    return [*(f"- {line}" for line in old if line in gone), *(f"+ {line}" for line in new if line in come)]


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)
