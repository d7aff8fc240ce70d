"""The bounds of requests that are in force, in a place that a reload writes while others hold it."""

from dataclasses import dataclass, field

from gateway.configuration.settings import Requests


@dataclass(slots=True)
class Bounds:
    """`now`: read again by each request. A call that runs keeps the values that it began with."""

    now: Requests = field(default_factory=Requests)
