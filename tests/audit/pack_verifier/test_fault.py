"""Findings of one kind are listed up to a number, and all of them counted."""

from audit.pack_verifier.fault import MAX_FINDINGS, Findings


def test_many_findings_of_one_kind_hide_none_of_another() -> None:
    findings = Findings()
    for seq in range(MAX_FINDINGS * 3):
        findings.fault("hash", "changed", seq)
    findings.fault("root", "elsewhere")
    assert [one["seq"] for one in findings.found] == [*range(MAX_FINDINGS), None]
    assert findings.total() == MAX_FINDINGS * 3 + 1


def test_a_note_is_no_fault() -> None:
    findings = Findings()
    findings.notes.append("compare the key")
    assert (findings.total(), findings.found) == (0, [])
