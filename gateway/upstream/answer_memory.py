"""What large answers of backends may hold of a gateway's memory, all together.

Each answer and each event of a stream is bounded alone (64 and 8 MB); many at once would still fill a host. Nothing
waits for memory: answers that hold a part of it and wait for more would wait for each other. The one that finds none is
refused, and what it held is free at once.
"""

from gateway.errors import AnswerMemoryFull

SMALL = 1 << 20
"""Bytes of one answer that are not counted: nearly every answer is smaller."""
MOST = 256 << 20
"""Bytes that the larger ones may hold in one process."""
MOST_OF_TENANT = MOST // 2
"""So that one tenant's own servers cannot have the answers of all others refused."""


class AnswerMemory:
    """Counts the bytes of large answers, by tenant."""

    def __init__(self, most: int = MOST, most_of_tenant: int = MOST_OF_TENANT) -> None:
        self._most = most
        self._most_of_tenant = most_of_tenant
        self._of_tenant: dict[str, int] = {}
        self.held = 0

    def of_tenant(self, tenant: str) -> int:
        """Return the bytes that answers to `tenant` hold."""
        return self._of_tenant.get(tenant, 0)

    def change(self, tenant: str, by: int) -> None:
        """Count `by` bytes more, or fewer where it is negative. Raises AnswerMemoryFull; then nothing has changed."""
        of_tenant = self.of_tenant(tenant) + by
        if by > 0 and (self.held + by > self._most or of_tenant > self._most_of_tenant):
            raise AnswerMemoryFull(
                "The large answers that this gateway receives fill the memory that they may have", retry_after_s=5
            )
        self.held += by
        if of_tenant:
            self._of_tenant[tenant] = of_tenant
        else:
            self._of_tenant.pop(tenant, None)


class AnswerShare:
    """What one answer holds of it. `give_back` it on every way out."""

    __slots__ = ("_held", "_memory", "_tenant")

    def __init__(self, memory: AnswerMemory, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._held = 0

    def holds(self, size: int) -> None:
        """Note that the answer now holds `size` bytes, more or fewer than before. Raises AnswerMemoryFull."""
        counted = size if size > SMALL else 0
        if counted != self._held:
            self._memory.change(self._tenant, counted - self._held)
            self._held = counted

    def give_back(self) -> None:
        """Hold nothing. Later calls change nothing."""
        self.holds(0)
