"""Changes made beside each other are all on record, and nothing is changed that is not."""

from concurrent.futures import ThreadPoolExecutor

from gateway.installation.admin_record import recorded_admin
from gateway.installation.installation import Installation


def test_threads_of_one_process_take_turns_and_every_change_is_on_record(tmp_path):
    installation = Installation.create(tmp_path / "data", "eu-1")

    def create(name):
        database = installation.database()
        with recorded_admin(installation) as on_event:
            installation.control(database, actor="system", on_event=on_event).create_tenant(name)
        database.close()

    names = [f"tenant-{letter}" for letter in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, names))
    database = installation.database()
    assert [tenant.id for tenant in installation.inventory(database).tenants()] == names
    database.close()
