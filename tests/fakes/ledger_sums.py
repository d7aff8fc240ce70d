"""Rows of the ledger that a test wrote by hand, added to the sums of their days as a gateway does."""

from gateway.database.database import Database
from gateway.store.log_followers import daily_sums


def sum_up(database: Database) -> None:
    with database.write() as session:
        connection = session.connection()
        daily_sums.add(connection, daily_sums.take_rest(connection, 1000))
