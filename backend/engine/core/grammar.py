"""Answers that have to match a grammar: which tokens may come next.

llguidance (an Earley parser over derivatives of regular expressions) compiles a grammar and, for each state it can be
in, computes the set of tokens that keep the text inside the language. A grammar is the caller's, so it counts as
hostile: its size, the work of compiling it and of each step, and the states of its lexer are bounded, and it is
compiled beside the loop that others wait for. Masks are made in `token_masks`; this module is the HTTP process's as
well, which knows no torch.
"""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from backend.errors import InvalidRequest
from backend.models.checkpoints.tokenizer import TextModel

MAX_GRAMMAR_BYTES = 128 << 10
KEPT_BYTES = 256 << 20  # of compiled grammars; agents send the same few again and again
UNKNOWN_SIZE = 1 << 20
NOTHING = "NoExtensionBias"  # llguidance's word for a grammar that no token begins
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # some 20 ms
    step_lexer_fuel=60_000,  # some 4 ms
    step_max_items=20_000,  # some 1 ms
    max_lexer_states=20_000,  # some 40 MB
    max_grammar_size=100_000,
    verbose_errors=False,  # they would quote the grammar
)
COMPILERS = 2  # threads
# What llguidance says of a grammar begins so; the rest may quote it.
REASONS = {
    "oneOf constraints": "oneOf is supported only where no two of its schemas can hold at once; use anyOf",
    NOTHING: "nothing can match the grammar; send one that matches a text",
    "Unknown format": "a format is not supported; remove it from the schema",
    "regex parse error": "a pattern is not a supported regular expression; remove look-around and back references",
    "Pointer": "a $ref points to nothing; name a member of $defs",
    "Resource": "a $ref leaves the schema; put what it names into $defs",
    "Failed to generate regex for": "minimum or maximum is beyond the supported numbers; use smaller ones",
    "type must be": "type is not the name of a type or a list of names; send one of these",
    "Unsatisfiable schema": "nothing can match the schema; remove the contradiction",
    "patternProperty": "two of patternProperties can match one name; make them exclusive",
    "min/maxProperties": "minProperties and maxProperties need every property; list all of them in required",
}


class GrammarTooComplex(InvalidRequest):
    """Compiling it, or following it, exceeds a limit."""

    fix = "send a smaller grammar or schema"
    code = "grammar_too_complex"


class GrammarMatcher:
    """Follows one sequence through its grammar. An end token is allowed where the text so far is a whole one of it, and
    is not to be accepted.

    after, begun_by: see `SamplingParams.grammar_after` and `thought_token`.
    """

    def __init__(self, compiled: "Future[LLMatcher]", after: int | None, begun_by: int | None = None) -> None:
        self._compiled = compiled
        self._after = after
        self._begun_by = begun_by
        self._matcher: LLMatcher | None = None

    @property
    def ready(self) -> bool:
        """It can be asked; until then its sequence does not run."""
        return self._compiled.done()

    def wait(self, timeout_s: float) -> None:
        """Until it is ready, or not longer than that."""
        try:
            self._compiled.exception(timeout_s)
        except TimeoutError:
            return

    def accept(self, token: int) -> bool:
        """Take the next token. False: the grammar cannot be followed any further."""
        begun_by, self._begun_by = self._begun_by, None
        if begun_by is not None and token != begun_by:
            self._after = None  # no thoughts come first
        if self._after is not None:
            if token == self._after:
                self._after = None
            return True
        return bool(self.own().consume_token(token))

    def ahead(self) -> "GrammarMatcher":
        """One that is where this one is, and goes on without it. Raises as `own`."""
        found = GrammarMatcher(self._compiled, self._after, self._begun_by)
        found._matcher = self.own().deep_copy()
        return found

    @property
    def holds(self) -> bool:
        """The grammar limits what may come next."""
        return self._after is None or self._begun_by is not None

    @property
    def also(self) -> int | None:
        """A token that is allowed next regardless of the grammar: the one that begins thoughts, at the start."""
        return self._begun_by

    def own(self) -> LLMatcher:
        """Where it is in the grammar. Raises InvalidRequest or GrammarTooComplex where compiling failed."""
        if self._matcher is None:
            self._matcher = self._compiled.result().deep_copy()
        return self._matcher


class Grammars:
    """Compiled grammars of one vocabulary, the least recently used of them dropped beyond KEPT_BYTES.

    vocab_size: of the model, which may have rows behind the tokenizer's last token; they are never allowed.
    """

    def __init__(self, text_model: TextModel, vocab_size: int) -> None:
        self._tokenizer = prepared(text_model, vocab_size)
        self._compiled: OrderedDict[str, tuple[Future[LLMatcher], int]] = OrderedDict()
        self._kept = 0
        self._compilers = ThreadPoolExecutor(COMPILERS, thread_name_prefix="grammar")

    @property
    def known(self) -> int:
        """Tokens that masks are of: the model's, and what the tokenizer may know beyond."""
        return int(self._tokenizer.vocab_size)

    def compiled(self, grammar: str, size: int = UNKNOWN_SIZE) -> "Future[LLMatcher]":
        """At its beginning, to be copied. Its error is GrammarTooComplex, or InvalidRequest for an invalid grammar.

        size: bytes that it keeps, as `grammar_check` found.
        """
        found = self._compiled.get(grammar)
        if found is not None and not (found[0].done() and found[0].exception()):
            self._compiled.move_to_end(grammar)
            return found[0]
        self._forget(grammar)
        future = self._compilers.submit(compile_grammar, self._tokenizer, grammar)
        size += len(grammar)
        self._compiled[grammar] = future, size
        self._kept += size
        while self._kept > KEPT_BYTES and len(self._compiled) > 1:
            self._forget(next(iter(self._compiled)))
        return future

    def _forget(self, grammar: str) -> None:
        _, size = self._compiled.pop(grammar, (None, 0))
        self._kept -= size

    def matcher(
        self, grammar: str, after: int | None = None, begun_by: int | None = None, size: int = UNKNOWN_SIZE
    ) -> GrammarMatcher:
        """For one sequence. after, begun_by: as in `GrammarMatcher`. size: as in `compiled`."""
        return GrammarMatcher(self.compiled(grammar, size), after, begun_by)


def prepared(text_model: TextModel, vocab_size: int) -> LLTokenizer:
    """A vocabulary that grammars can be compiled for."""
    return LLTokenizer(TokenizerWrapper(_Vocabulary(text_model, vocab_size)), eos_token=sorted(text_model.eos_ids))


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """At its beginning. Raises GrammarTooComplex, or InvalidRequest for an invalid grammar or one that no text
    matches."""
    if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise GrammarTooComplex(f"the grammar is longer than {MAX_GRAMMAR_BYTES} bytes; send a shorter one")
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        first = matcher.deep_copy()  # the first mask is the costly one, and not all errors show before it
        if not any(first.compute_bitmask()) or first.is_error():
            raise _refusal(first.get_error() if first.is_error() else NOTHING)
    if matcher.is_error():
        raise _refusal(matcher.get_error())
    return matcher


def _refusal(error: str) -> InvalidRequest:
    """Says why without quoting the grammar, which is the caller's text."""
    if any(word in error for word in ("too large", "too many", "limit", "fuel", "max is", "too complex")):
        return GrammarTooComplex("the grammar is too complex; send a smaller one")
    if error.startswith("Unimplemented keys"):
        return InvalidRequest(
            f"the JSON schema uses keywords that are not supported: {error.split(':', 1)[1].strip()}; remove them"
        )
    known = (reason for beginning, reason in REASONS.items() if error.startswith(beginning))
    if "invalid regex" in error:
        return InvalidRequest(REASONS["regex parse error"])
    return InvalidRequest(next(known, "the grammar cannot be read; send a valid grammar"))


class _Vocabulary:
    """What llguidance asks of a tokenizer. Control tokens and rows behind the last token are special: no text reaches
    them."""

    def __init__(self, text_model: TextModel, vocab_size: int) -> None:
        spelled, table = text_model.tokenizer.id_to_token, text_model.token_bytes
        texts = table + [b""] * (vocab_size - len(table))
        self.tokens = [text or (spelled(i) or f"<[{i}]>").encode() for i, text in enumerate(texts)]
        self.special_token_ids = [i for i, text in enumerate(texts) if not text]
        self.eos_token_id = min(text_model.eos_ids)
        self.bos_token_id = text_model.bos_id
        self._tokenizer = text_model.tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode("utf-8", errors="ignore") if isinstance(text, bytes) else text
        ids: list[int] = self._tokenizer.encode(plain, add_special_tokens=False).ids
        return ids
