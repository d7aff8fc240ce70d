"""How each kind of model writes calls: read by a parser, described to the model, forced by a grammar.

Names are vLLM's.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_letters, digits

from backend.errors import ConfigError
from backend.tools import harmony, hermes, llama3, mistral
from backend.tools.call import CallScript
from backend.tools.harmony import HarmonyParser
from backend.tools.hermes import HermesParser
from backend.tools.llama3 import Llama3Parser
from backend.tools.mistral import MistralParser


@dataclass(frozen=True, slots=True)
class Shape:
    """The texts around one call and between several; ``arguments`` is the key of theirs. Where `opening` is a control
    token it is written here by its spelling."""

    opening: str
    closing: str
    between: str
    before: str = ""
    after: str = ""
    arguments: str = "arguments"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Attributes:
    parser: reads calls from the answer's text.
    markers: spellings of control tokens that the parser has to see.
    shape: of calls that are forced; None where they cannot be: the parser then reads every answer, called or not, for
        its thoughts and its text have marks as well.
    call_id: a name for a call, as the model's template wants it when it comes back.
    """

    name: str
    parser: type[CallScript]
    markers: tuple[str, ...]
    shape: Shape | None
    call_id: Callable[[], str]


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _nine_letters() -> str:
    """Mistral's templates refuse any other length."""
    return "".join(secrets.choice(ascii_letters + digits) for _ in range(9))


HERMES = ToolFormat(
    name="hermes",
    parser=HermesParser,
    markers=(hermes.OPEN, hermes.CLOSE),
    shape=Shape(opening=f"{hermes.OPEN}\n", closing=f"\n{hermes.CLOSE}", between="\n"),
    call_id=_call_id,
)
LLAMA3 = ToolFormat(
    name="llama3_json",
    parser=Llama3Parser,
    markers=(llama3.TAG,),
    shape=Shape(opening="", closing="", between="; ", arguments="parameters"),
    call_id=_call_id,
)
MISTRAL = ToolFormat(
    name="mistral",
    parser=MistralParser,
    markers=(mistral.CALLS, mistral.ARGS, mistral.CALL_ID),
    shape=Shape(opening="", closing="", between=", ", before=mistral.CALLS + "[", after="]"),
    call_id=_nine_letters,
)
HARMONY = ToolFormat(name="harmony", parser=HarmonyParser, markers=harmony.MARKERS, shape=None, call_id=_call_id)
FORMATS = {f.name: f for f in (HERMES, LLAMA3, MISTRAL)}  # of calls alone
EVERY = FORMATS | {HARMONY.name: HARMONY}


def named(name: str) -> ToolFormat:
    """Raises ConfigError."""
    if name not in EVERY:
        raise ConfigError(
            f"tool call parser {name!r} is not one of auto, none, {', '.join(EVERY)}"
            "; set --tool-call-parser to one of them"
        )
    return EVERY[name]


def of_template(source: str) -> ToolFormat | None:
    """The format that a chat template teaches its model; None: one that we do not read. A template that knows nothing
    of tools leaves the choice to us."""
    if harmony.CHANNEL in source and harmony.START in source:
        return HARMONY
    if mistral.CALLS in source or "[AVAILABLE_TOOLS]" in source:
        return MISTRAL
    if "<function=" in source:  # Qwen3-Coder's, which is no JSON
        return None
    if hermes.OPEN in source:
        return HERMES
    if llama3.TAG in source or ('"parameters"' in source and "ipython" in source):
        return LLAMA3
    return None if takes_tools(source) else HERMES


def takes_tools(source: str) -> bool:
    """Whether a template does something with the tools it is given."""
    return "tools" in source
