"""Declaration of one page or form of the console."""

from dataclasses import dataclass

from gateway.console.visit import Handler


@dataclass(frozen=True, slots=True)
class Page:
    """`fresh`: it cannot be undone, so it takes a sign-in of a few minutes ago. `shown_by`: the page that the form is
    on, which shows why it was refused."""

    path: str
    handler: Handler
    method: str = "GET"
    fresh: bool = False
    shown_by: Handler | None = None


def form(path: str, handler: Handler, shown_by: Handler | None = None, *, fresh: bool = False) -> Page:
    """A form that is sent by POST."""
    return Page(path, handler, "POST", fresh, shown_by)
