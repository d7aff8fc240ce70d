"""Answers are found again in a real log, by their text, with a receipt that proves the record."""

import pytest

from audit.events.event import AnswerPrints, InferenceAborted, InferenceCompleted
from audit.log.answer_prints import SCHEME, letters_of, prints_of, written
from audit.log.found_answers import MOST, find_answers
from audit.log.receipt import Receipt
from tests.audit.conftest import accepted, completed
from tests.audit.log.test_answer_prints import edited, prose

ON_BOTH_STORES = True
SALTS = {"2026-11": b"n" * 32, "2026-12": b"d" * 32}
TEXT, OTHER = prose(1), prose(2)


def prints(text, period="2026-12", salt=None):
    found, letters = prints_of(salt or SALTS[period], [text])
    state = "stored" if found else "short"
    said = written(found) if found else None
    return AnswerPrints(scheme=SCHEME, period=period, state=state, letters=letters, prints=said)


def answered(request_id, text, *, tenant="acme", period="2026-12", salt=None):
    known = completed(request_id).model_dump(exclude_none=True)
    return InferenceCompleted.model_validate(
        {**known, "tenant": tenant, "model_served": "small", "answer_prints": prints(text, period, salt)}
    )


@pytest.fixture
async def reader(home):
    async with await home.open() as log:
        await log.append(accepted("a"))
        await log.append(accepted("b", project="shop"))
        await log.append(answered("b", OTHER, period="2026-11"))
        await log.append(answered("a", TEXT))
        await log.append(accepted("c"))
        await log.append(completed("c"))
        await log.append(accepted("d"))
        await log.append(
            InferenceAborted(
                tenant="acme", request_id="d", reason="cancelled", answer_prints=prints(TEXT[: len(TEXT) // 2])
            )
        )
        await log.append(accepted("e", tenant="globex"))
        await log.append(answered("e", TEXT, tenant="globex", salt=b"g" * 32))
        await log.append(accepted("f"))
        await log.append(answered("f", "yes"))
        reader = home.reader()
        yield reader
        reader.close()


async def test_a_text_names_the_calls_that_gave_it_the_best_first(reader):
    found = find_answers(reader, "acme", TEXT, SALTS)
    assert (found.verdict, found.matches, found.compared, found.end) == ("found", 2, 3, 10)
    assert [(one.request_id, one.outcome, one.seq) for one in found.answers] == [
        ("d", "aborted", 7),
        ("a", "completed", 3),
    ]
    assert (found.answers[1].project, found.answers[1].model) == ("support", "small")
    assert all(one.common == one.prints for one in found.answers)
    assert all(0 < one.chance < 1e-100 for one in found.answers)
    assert found.letters == len(letters_of(TEXT))


async def test_the_receipt_is_that_of_the_record(reader):
    one = find_answers(reader, "acme", TEXT, SALTS).answers[1]
    receipt = Receipt.parse(one.receipt)
    leaf = next(reader.leaves("acme", 3, 4))
    assert (receipt.tenant, receipt.seq, receipt.leaf_hash) == ("acme", 3, leaf.leaf_hash)


async def test_each_month_is_searched_by_its_salt_and_edits_are_found(reader):
    found = find_answers(reader, "acme", edited(OTHER, 0.1), SALTS)
    assert [(one.request_id, one.project) for one in found.answers] == [("b", "shop")]
    assert found.answers[0].common < found.answers[0].prints


async def test_months_whose_salt_is_gone_are_named_and_nothing_is_said_of_them(reader):
    found = find_answers(reader, "acme", TEXT, {"2026-11": SALTS["2026-11"]})
    assert (found.verdict, found.compared, found.unsearched_periods) == ("not_found", 1, ("2026-12",))
    none = find_answers(reader, "acme", TEXT, {})
    assert (none.verdict, none.unsearched_periods) == ("unsearched", ("2026-11", "2026-12"))


@pytest.mark.parametrize("salts", [SALTS, {"2026-12": b"g" * 32}], ids=["mine", "theirs"])
async def test_another_tenants_answers_are_found_by_nobody_else(reader, salts):
    found = find_answers(reader, "globex", TEXT, salts)
    assert [one.request_id for one in found.answers] == ([] if salts is SALTS else ["e"])


async def test_a_text_nobody_gave_is_not_found(reader):
    found = find_answers(reader, "acme", prose(9), SALTS)
    assert (found.verdict, found.answers, found.matches, found.compared) == ("not_found", (), 0, 3)


@pytest.mark.parametrize("text", ["", "yes", prose(1)[:60]])
async def test_a_text_too_short_is_said_to_be(reader, text):
    assert find_answers(reader, "acme", text, SALTS).verdict == "too_short"


async def test_a_tenant_without_a_log_has_no_answers(reader):
    found = find_answers(reader, "nobody", TEXT, SALTS)
    assert (found.verdict, found.end) == ("not_found", 0)


async def test_of_many_equal_answers_the_newest_are_named_and_all_counted(home):
    async with await home.open() as log:
        for number in range(MOST + 3):
            await log.append(accepted(f"r{number}"))
            await log.append(answered(f"r{number}", TEXT))
        reader = home.reader()
        found = find_answers(reader, "acme", TEXT, SALTS)
        reader.close()
    assert (found.matches, len(found.answers)) == (MOST + 3, MOST)
    assert found.answers[0].request_id == f"r{MOST + 2}"
