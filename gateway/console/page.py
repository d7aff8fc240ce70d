"""Declaration of one page or form of the console."""

from dataclasses import dataclass

from gateway.console.visit import Handler


@dataclass(frozen=True, slots=True)
class Page:
    """`fresh`: irreversible action that requires a recent sign-in. `shown_by`: handler of the page with the form,
    which shows why the form was refused."""

    path: str
    handler: Handler
    method: str = "GET"
    fresh: bool = False
    shown_by: Handler | None = None


def form(path: str, handler: Handler, shown_by: Handler | None = None, *, fresh: bool = False) -> Page:
    """Declare a form sent by POST."""
    return Page(path, handler, "POST", fresh, shown_by)
