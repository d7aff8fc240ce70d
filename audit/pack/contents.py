"""The files of an evidence pack: what each contains, what it is derived from, and its legal basis.

checked     by verify.py against the log's key, the tree or the records: records, proofs, certificates, policies
recomputed  follows from the records alone: verify.py makes it again and compares (`audit.pack_verifier.pack_tables`)
signed      made from registers outside the log: the manifest's signature says who stated it, and nothing proves it
program     the format and the check themselves
"""

from fnmatch import fnmatchcase

CHECKED, RECOMPUTED, SIGNED, PROGRAM = "checked", "recomputed", "signed", "program"

CONTENTS = (
    ("README.html", SIGNED, "what is in here, in plain words, with charts; printable", ""),
    ("manifest.json", CHECKED, "which files, by SHA-256", ""),
    ("manifest.sig", CHECKED, "its signature", ""),
    ("events.jsonl", CHECKED, "every record as it was hashed, one a line", "AI Act 12, 19, 26(6)"),
    ("checkpoint", CHECKED, "the signed state of the log", ""),
    ("proofs/*", CHECKED, "what leads from the records to the checkpoint and to witnesses", ""),
    ("fields.jsonl", CHECKED, "what became of each private value", "GDPR 17"),
    ("certificates/*", CHECKED, "what was deleted, signed", "GDPR 17, 19"),
    ("events.csv", RECOMPUTED, "the records, flat, for a spreadsheet", "AI Act 12"),
    ("counts.csv", RECOMPUTED, "records by day and type; refused requests by reason, endpoint and key", "NIS2 21"),
    ("ocsf.jsonl", RECOMPUTED, "the records for a SIEM (OCSF 1.3.0)", ""),
    ("transfer_report.csv", RECOMPUTED, "where calls went and on what basis, by month, zeros too", "GDPR 44-49"),
    ("residency_evidence.json", RECOMPUTED, "routes, connections with certificates, refusals", "GDPR 44-49"),
    ("weights.csv", RECOMPUTED, "which weights answered, by model and backend", "AI Act 12(2), 15(5)"),
    ("attestations.csv", RECOMPUTED, "evidence of backends' hardware, and what did not hold", "GDPR 32; AI Act 15(5)"),
    ("denied.csv", RECOMPUTED, "what was refused and why", "GDPR 44-49"),
    ("admin_access.csv", RECOMPUTED, "who changed, read, exported or erased what", "GDPR 32; NIS2 2024/2690 3.2"),
    ("retention_run.csv", RECOMPUTED, "what was deleted for being over its time, what was held", "GDPR 5(1)(e)"),
    ("erasure_certificate.json", RECOMPUTED, "the certificates, opened", "GDPR 17, 19"),
    (
        "ai_systems.json",
        RECOMPUTED,
        "each AI system: calls, models, changes, acts of oversight",
        "AI Act 12, 14, 26(5)",
    ),
    (
        "incidents.json",
        RECOMPUTED,
        "incidents, also none; due dates follow the table of laws",
        "GDPR 33(5); DORA 17-19",
    ),
    ("subject_requests.json", RECOMPUTED, "requests of persons, until when each was due, also none", "GDPR 12(3)"),
    ("authority_requests.csv", RECOMPUTED, "requests of authorities, also none", "GDPR 48; Data Act 32"),
    ("ropa_controller.*", SIGNED, "record of processing of the controller", "GDPR 30(1)"),
    ("ropa_processor.*", SIGNED, "record of processing of the processor", "GDPR 30(2)"),
    ("measures.csv", SIGNED, "each safeguard that a configuration implies or rules out", "GDPR 32(1)"),
    ("subprocessors.csv", SIGNED, "sub-processors with the versions of their registers, also none", "GDPR 28(2), (4)"),
    ("transfer_safeguards.csv", SIGNED, "what transfers by each operator rest on, also none", "GDPR 46, 47"),
    ("backends.json", SIGNED, "who processes where, and who controls them", "GDPR 28; C5 BC-01"),
    ("dpia.*", SIGNED, "what configuration and records say for an impact assessment", "GDPR 35"),
    ("privacy_notice_*.html", SIGNED, "information of persons, English and German", "GDPR 13, 14"),
    ("dora_register.csv", SIGNED, "register of information by column code, with who fills each", "DORA 28(3)"),
    ("dora/*", SIGNED, "its templates in the codes of ITS 2024/2956", "DORA 28(3)"),
    ("policy_history.json", CHECKED, "each policy version: text, diff, who activated it, when in force", "GDPR 24, 25"),
    ("policies_in_force.json", CHECKED, "the policies that calls name by policy_hash, with their texts", "GDPR 24, 25"),
    ("dsar_*", SIGNED, "access packages, where they were asked for", "GDPR 15, 20"),
    ("control_mapping.csv", SIGNED, "duty, date of application, feature, test, last self-test", "see the file"),
    ("schema.json", PROGRAM, "the format of the records", "AI Act 13(3)(f)"),
    ("verify.py", PROGRAM, "the check", ""),
)
"""Pattern, basis, content and source in law. The first pattern that fits a name is the one that counts."""


def basis_of(name: str) -> str:
    """The basis of the file; empty for a name that no pattern fits."""
    for pattern, basis, _, _ in CONTENTS:
        if fnmatchcase(name, pattern):
            return basis
    return ""
