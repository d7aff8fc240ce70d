"""What a caller's grammar may cost: checked in a process of its own, on the demonstration model's tokenizer."""

from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio
from llguidance import LLMatcher

from backend.engine.core.grammar import GrammarTooComplex
from backend.errors import InvalidRequest
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.process.grammar_check import GrammarCheck
from backend.process.grammar_sandbox import KEPT_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")
regex = LLMatcher.grammar_from_regex


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def check(smollm: Checkpoint) -> AsyncIterator[GrammarCheck]:
    one = GrammarCheck(smollm.text, smollm.text.vocab_size)
    yield one
    await one.close()


@pytest.mark.parametrize("pattern", ["[0-9]{4}", r"[a-z]+@[a-z]+\.org", "(.|\n){0,2000}", r"\p{L}{1,200}"])
async def test_an_ordinary_pattern_is_taken_with_its_size(check: GrammarCheck, pattern: str) -> None:
    assert 0 <= await check.size(regex(pattern)) <= KEPT_BYTES


@pytest.mark.parametrize("pattern", ["({}{{1000}}){{1000}}", "{}{{1000000}}", "(((({}{{99}}){{99}}){{99}}){{99}})"])
async def test_a_pattern_that_expands_beyond_measure_is_refused_and_its_memory_given_back(
    check: GrammarCheck, pattern: str
) -> None:
    before = None
    for letter in "ghij":
        with pytest.raises(GrammarTooComplex, match="use fewer or smaller repetitions"):
            await check.size(regex(pattern.format(letter)))
        assert check._process is not None
        memory = psutil.Process(check._process.pid).memory_info().rss
        before = memory if before is None else before
        assert memory < before + KEPT_BYTES
    assert await check.size(regex("[0-9]")) >= 0


async def test_the_process_that_checks_survives_what_it_refuses(check: GrammarCheck) -> None:
    await check.size(regex("a"))
    assert check._process is not None
    process = check._process.pid
    with pytest.raises(GrammarTooComplex):
        await check.size(regex("(z{1000}){1000}"))
    await check.size(regex("b"))
    assert check._process.pid == process


async def test_a_process_that_was_killed_is_replaced(check: GrammarCheck) -> None:
    await check.size(regex("c"))
    assert check._process is not None
    check._process.kill()
    await check._process.wait()
    assert await check.size(regex("d")) >= 0


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        (regex("(?=a)b"), "remove look-around"),
        (regex(r"\bfoo"), "remove look-around"),
        (LLMatcher.grammar_from_lark("start: start"), "nothing can match the grammar"),
        ("not a grammar", "cannot be read"),
    ],
)
async def test_what_is_no_grammar_is_refused_with_its_reason(check: GrammarCheck, grammar: str, why: str) -> None:
    for _ in range(2):  # the second time from what is remembered
        with pytest.raises(InvalidRequest, match=why):
            await check.size(grammar)
