"""The bounds of requests that are in force, in an object that a reload changes while others hold it."""

from dataclasses import dataclass, fields
from typing import Protocol, Self

from gateway.configuration.settings import Requests


class Bounds(Protocol):
    """The settings `requests`, as they are (`Requests`) or as they are in force now (`LiveBounds`)."""

    @property
    def max_body_bytes(self) -> int: ...
    @property
    def body_timeout_s(self) -> float: ...
    @property
    def connect_timeout_s(self) -> float: ...
    @property
    def silence_timeout_s(self) -> float: ...
    @property
    def comment_after_s(self) -> float: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def default_max_tokens(self) -> int: ...


@dataclass(slots=True)
class LiveBounds:
    """Read by each request anew. What runs keeps what it began with."""

    max_body_bytes: int
    body_timeout_s: float
    connect_timeout_s: float
    silence_timeout_s: float
    comment_after_s: float
    max_attempts: int
    default_max_tokens: int

    @classmethod
    def of(cls, settings: Requests) -> Self:
        return cls(**settings.model_dump())

    def become(self, settings: Requests) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(settings, field.name))
