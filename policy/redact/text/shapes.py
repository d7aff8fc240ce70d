"""Regular expressions for number formats written as samples, tolerant of the separators that people insert."""

_SIGNS = {"9": "[0-9]", "A": "[A-Za-z]", "*": "[0-9A-Za-z]"}

BEGIN = r"(?<![A-Za-z0-9_])(?<![0-9][./-])"
END = r"(?![A-Za-z0-9_]|[./-][0-9])"


def flexible(sample: str) -> str:
    """Return a pattern for `sample`: 9 is a digit, A a letter, * either, ? makes the next character optional.

    Any other character matches itself. Up to three spaces, dots, slashes or hyphens may stand between two characters.
    """
    pieces: list[str] = []
    optional = False
    for sign in sample:
        if sign == "?":
            optional = True
            continue
        one = ("[ ./-]{0,3}" if pieces else "") + _SIGNS.get(sign, sign)
        pieces.append(f"(?:{one})?" if optional else one)
        optional = False
    return "".join(pieces)
