"""Shapes of numbers, written as samples, as regular expressions that bear the separators people put into them."""

_SIGNS = {"9": "[0-9]", "A": "[A-Za-z]", "*": "[0-9A-Za-z]"}

BEGIN = r"(?<![A-Za-z0-9_])(?<![0-9][./-])"
END = r"(?![A-Za-z0-9_]|[./-][0-9])"


def flexible(sample: str) -> str:
    """`sample`: 9 is a digit, A a letter, * either, ? in front makes the next optional, any other sign is itself.

    Up to three blanks, dots, slashes or hyphens may stand between two signs.
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
