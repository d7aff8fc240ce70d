"""Who was ruled by which versions, and when."""

from hashlib import sha256
from typing import Any

import pytest

from audit.pack_verifier.fault import Findings
from audit.pack_verifier.history import History, moment, stamp

MARCH, APRIL, MAY = (f"2026-{month}-01T00:00:00.000Z" for month in ("03", "04", "05"))


def version(number: int, since: str, until: str = "", scope: str = "", text: str = "policy") -> dict[str, Any]:
    digest = sha256(b"policy").hexdigest()
    times = {"activated_at": since, "in_force_until": until}
    return {"scope": scope, "number": number, "sha256": digest, "text": text, **times}


def read(*versions: dict[str, Any]) -> History:
    history = History(Findings())
    for one in versions:
        history.take(one)
    history.check_order()
    return history


def says(history: History) -> str:
    return "; ".join(one["says"] for one in history.findings.found)


def test_a_version_is_in_force_from_its_activation_until_the_next_with_what_clocks_may_differ() -> None:
    history = read(version(1, MARCH, APRIL), version(2, APRIL))
    assert not history.findings.found
    assert list(history.in_force({"": 1}, "cmd")) == [("2026-02-28T23:59:00.000Z", "2026-04-01T00:05:00.000Z")]
    ((since, until),) = history.in_force({"": 2}, "cmd")
    assert (since, until) == ("2026-03-31T23:59:00.000Z", "9999-12-31T23:59:59.999Z")


def test_a_project_with_a_policy_of_its_own_was_under_its_tenants_alone_only_before() -> None:
    history = read(version(1, MARCH), version(1, MAY, scope="cmd"))
    assert list(history.in_force({"": 1}, "cmd")) == [("2026-02-28T23:59:00.000Z", "2026-05-01T00:05:00.000Z")]
    assert list(history.in_force({"": 1, "cmd": 1}, "other")) == []
    assert next(history.in_force({"": 1}, "other"))[1].startswith("9999")


def test_versions_that_were_never_in_force_together_rule_nothing() -> None:
    history = read(version(1, MARCH, APRIL), version(2, APRIL), version(1, MAY, scope="_operator"))
    assert list(history.in_force({"_operator": 1, "": 1}, "cmd")) == []


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        ([version(1, MARCH, MAY), version(2, APRIL)], "version 1 of the tenant's policy ends at another time"),
        ([version(1, MARCH), version(2, APRIL)], "ends at another time"),
        ([version(1, MARCH, APRIL)], "ends at another time"),
        ([version(1, APRIL, MARCH), version(2, MARCH)], "version 2 of the tenant's policy begins before the one"),
        ([version(1, MARCH, scope="cmd"), version(1, APRIL, scope="cmd")], "project cmd is in the history twice"),
        ([version(1, MARCH, scope="_operator", text="x")], "the operator's policy is not the one that was activated"),
        ([version(1, "yesterday")], "not of this format"),
        ([{"scope": ""}], "not of this format"),
    ],
)
def test_a_history_that_cannot_have_been_is_told(versions: list[dict[str, Any]], told: str) -> None:
    assert told in says(read(*versions))


def test_times_are_read_and_written_in_one_form() -> None:
    assert stamp(moment(MARCH)) == MARCH
    with pytest.raises(ValueError):
        moment("2026-03-01T00:00:00+01:00")
