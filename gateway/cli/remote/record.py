"""The admin API as the commands of `audit` ask it: with the errors that the record itself would raise."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from audit.cli.command_context import UsageMistake
from audit.errors import AuditError
from gateway.cli.remote.api import AdminApi
from gateway.database.errors import InvalidValue, StoreError


class RecordApi:
    """Methods raise AuditError; UsageMistake for a value that no installation accepts."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api

    def get(self, *path: str) -> Any:
        with _of_the_record():
            return self._api.get(*path)

    def post(self, *path: str, body: Mapping[str, Any]) -> Any:
        with _of_the_record():
            return self._api.post(*path, body=body)

    def download(self, take: Callable[[bytes], object], *path: str, max_bytes: int) -> None:
        with _of_the_record():
            self._api.download(take, *path, max_bytes=max_bytes)


@contextmanager
def _of_the_record() -> Iterator[None]:
    try:
        yield
    except InvalidValue as error:
        raise UsageMistake(str(error)) from error
    except StoreError as error:
        raise AuditError(str(error)) from error
