"""Which characters words are made of here, as the inside of a regular expression's class.

Detectors may look only at `WORD` characters and at the blanks between them, matches and look-arounds alike:
`policy.redact.stream` relies on it to know what can no longer become part of a match.
"""

# Latin, Greek and Cyrillic, and marks that combine with them. Scripts without blanks between words stay out: no
# address is written in them, and a whole paragraph would count as one word and be held back.
LETTER = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u0370-\u03ff\u0400-\u052f\u1e00-\u1fff"
ALNUM = LETTER + "0-9"
WORD = ALNUM + r"_.%+'@/:=()#~\-"
