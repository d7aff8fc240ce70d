"""Legal entity identifiers (ISO 17442)."""

import re

_FORM = re.compile(r"[0-9A-Z]{18}[0-9]{2}")


def check_lei(code: str) -> str:
    """The code itself. Raises ValueError unless it has 18 characters and two check digits that fit (ISO/IEC 7064,
    MOD 97-10 over all 20)."""
    if not _FORM.fullmatch(code) or int("".join(str(int(one, 36)) for one in code)) % 97 != 1:
        raise ValueError(
            f"the code {code!r} is no legal entity identifier (ISO 17442); give 20 characters, the check digits last"
        )
    return code
