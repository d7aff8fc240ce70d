"""Detection of counts and measurements: `phone_calls: 12345678`, `"ssn_lookups_total": 90210`, a column headed `calls`.

A key that begins with the name of a kind of personal data may still name a count of it. The last word of the key
decides. Only an unbroken number, or one with thousands separators, is treated as a count: a phone, card or identity
number in its usual groups is still reported as what its key says.
"""

import re

from policy.redact.text.reading import Reading

# Last words of keys that have several words. Words that can precede a value (`ssn_found`) are excluded.
_WORDS = (
    "count counts counter counters total totals sum avg average mean median min max p50 p75 p90 p95 p99 ms us "
    "ns sec secs seconds minutes hours days bytes kb mb gb size len length rate ratio share score quota hits "
    "misses errors failures retries attempts lookups scans checks requests queries events users sold calls "
    "version build timeout interval ttl latency duration offset index width height capacity volume revenue "
    "sales cost costs price prices budget usage anzahl summe gesamt dauer kosten menge cantidad"
)
_COUNTS = frozenset(_WORDS.split())
# Complete names that denote a count without the name of a kind of personal data before them.
_ALONE = frozenset({"calls", "calls made", "calls total", "total calls", "number of calls", "no of calls"})
_KEY = re.compile(r"(?<![\w@-])(?P<key>[^\W\d_][\w.-]{1,63})[\"'`]?[ \t]?(?::|=|=>|:=)[ \t]?[\"'`]?\Z")
_PARTS = re.compile(r"[A-Z]?[a-z]+[0-9]*|[A-Z]+(?![a-z])|[0-9]+")
# `phones sold: `, `fax count `, `SSN lookups: `
_SPOKEN = re.compile(
    r"(?<![^\W_])(?:counts?|totals?|lookups|scans|sold|verkauft\w*|vendu[es]{0,2}|vendid[oa]s|vendut[iea]|models?|modell\w*|modele"
    r"|modelo|version\w*|build|releases?|firmware|sdk|api)[\"'`)]{0,2}(?: ?[:=] ?| (?:is |was |ist |war )?)\Z"
)
_CALLS = re.compile(r"(?<![^\W_])calls ?[:=] ?\Z")
_PLAIN = re.compile(r"[1-9][0-9]{0,2}(?:[ .,'][0-9]{3})+(?![0-9])|[1-9][0-9]*(?:[.,][0-9]+)?(?![0-9])")
_GROUPS_OF_OTHERS = re.compile(r"[ ./()-][0-9]")
_REACH = 72


def is_count(reading: Reading, begin: int) -> bool:
    """Return whether `begin` starts an unbroken or thousands-separated number whose key or column heading names a
    count.
    """
    number = _PLAIN.match(reading, begin)
    if number is None or _GROUPS_OF_OTHERS.match(reading, number.end()):
        return False
    first = max(0, begin - _REACH)
    key = _KEY.search(reading, first, begin)
    if key and counts(key["key"]):
        return True
    if _SPOKEN.search(reading.folded, first, begin) or _CALLS.search(reading.folded, first, begin):
        return True
    return _heads_counts(reading, begin)


def counts(name: str) -> bool:
    """Return whether a key or a heading names a count: `phoneCount`, `calls`, `ssn_lookups_total`."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    return " ".join(parts) in _ALONE or (len(parts) > 1 and (parts[-1] in _COUNTS or parts[-2] == "per"))


def _heads_counts(reading: Reading, begin: int) -> bool:
    return reading.is_below(begin, "counts", lambda column: counts(reading[column.start : column.end]))
