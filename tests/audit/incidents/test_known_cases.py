"""Incidents that are read once: always what a reading of the whole log says, whoever wrote in between."""

from audit.incidents.incident import cases, close, notify, open_incident
from audit.incidents.known_cases import known_incidents
from audit.storage.store import Reader

ON_BOTH_STORES = True


class Counted:
    """A reader that knows which records were read."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.read = reader, []

    def __getattr__(self, name):
        return getattr(self.reader, name)

    def leaves(self, tenant, start=0, end=None):
        for leaf in self.reader.leaves(tenant, start, end):
            self.read.append((tenant, leaf.seq))
            yield leaf


async def test_what_is_known_is_what_the_whole_log_says_and_each_record_is_read_once(home):
    known = known_incidents()
    async with home.context() as context:

        def same(tenant="acme"):
            with context.reading() as reader:
                assert known.of(reader, tenant) == cases(reader, tenant)

        first = await open_incident(context, "acme", laws=("gdpr",))
        same()
        await open_incident(context, "globex", laws=("gdpr",))
        second = await open_incident(context, "acme", laws=("nis2",))
        await notify(context, "acme", first, clock="gdpr.authority", authority="CNIL")
        same()
        same("globex")
        await close(context, "acme", second, reason="resolved", release=True)
        with context.reading() as reader:
            counted = Counted(reader)
            assert [each.closed is None for each in known.of(counted, "acme")] == [True, False]
            new = len(counted.read)
            assert 0 < new < reader.head("acme")[0]
            known.of(counted, "acme")
            assert len(counted.read) == new


async def test_what_one_asker_does_with_a_case_changes_none_of_another(home):
    known = known_incidents()
    async with home.context() as context:
        await open_incident(context, "acme", laws=("gdpr",))
        with context.reading() as reader:
            known.of(reader, "acme")[0].moments.clear()
            assert known.of(reader, "acme")[0].moments


async def test_a_log_that_is_shorter_than_what_was_read_is_read_anew(home, tmp_path):
    known = known_incidents()
    known._tenants.clear()
    async with home.context() as context:
        await open_incident(context, "acme", laws=("gdpr",))
        with context.reading() as reader:
            known.of(reader, "acme")
            known._tenants["acme"].size += 100
            assert known.of(reader, "acme") == cases(reader, "acme")


async def test_a_tenant_without_a_log_has_no_incident(home):
    async with home.context() as context:
        await open_incident(context, "acme", laws=("gdpr",))
        with context.reading() as reader:
            assert known_incidents().of(reader, "nobody") == []
