"""Word characters for detector patterns, written as the inside of a regular expression's character class.

Detectors, including their lookarounds, may only examine `WORD` characters and the spaces between words.
`policy.redact.stream` relies on this to decide which text can no longer become part of a match.
"""

# Latin, Greek and Cyrillic, with their combining marks. Scripts without spaces between words are left out: no detector
# matches addresses in them, and a stream would buffer a whole paragraph as one word.
LETTER = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0300-\u036f\u0370-\u03ff\u0400-\u052f\u1e00-\u1fff"
ALNUM = LETTER + "0-9"
WORD = ALNUM + r"_.%+'@/:=()#~\-"
