"""Every error the backend raises, in one tree.

    BackendError
    ├── ConfigError              the engine cannot be built as asked; the message names what would do
    ├── ModelError               a checkpoint that cannot be served
    │   ├── ModelNotFound        nothing at that path
    │   ├── FetchError           it could not be brought here from a hub, a registry or a bucket
    │   ├── UnsupportedModel     readable, but an architecture, tokenizer or data type we do not have
    │   └── CorruptCheckpoint    missing, extra, misshapen or non-finite tensors; a file that breaks its own format
    ├── RequestError             the caller's request; carries status, param and code of the OpenAI error body
    │   ├── InvalidRequest       400
    │   ├── ContextLengthExceeded 400
    │   ├── ModelUnknown         404
    │   ├── AdapterRefused       400: an adapter that is not there or not computed; the message names what
    │   ├── AdapterInUse         409: sequences run with it, or another one has its name
    │   ├── AdaptersFull         409: all places are taken
    │   ├── DeadlineExceeded     504: the time that the request gave itself is over
    │   ├── Overloaded           503 with Retry-After: the waiting queue is full
    │   │   ├── ProjectBusy      429 with Retry-After: one project's share of the queue is full
    │   │   └── Asleep           503 with Retry-After: the backend sleeps until its owner wakes it
    │   ├── CannotSleep          409: there is no room for what must be kept; the backend stays awake
    │   └── CannotWake           503: the memory is not available; the backend stays asleep
    └── EngineDead               503: the engine process is gone or hangs

Messages never hold prompt text. Each has the form ``<what>; <how to fix it>``: the fix is in the message, or in
the class for all its messages (`fix`).
"""

from typing import ClassVar


class BackendError(Exception):
    """Base of all of them. `fix`: the remedy of every message of the class that names none itself."""

    fix: ClassVar[str] = ""

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(f"{text}; {self.fix}" if self.fix and "; " not in text else text)


class ConfigError(BackendError):
    pass


class ModelError(BackendError):
    pass


class ModelNotFound(ModelError):
    pass


class FetchError(ModelError):
    pass


class UnsupportedModel(ModelError):
    fix = "serve a model and a file format that docs/models.md lists"


class CorruptCheckpoint(ModelError):
    fix = "download or convert the checkpoint again"


class RequestError(BackendError):
    """One request cannot be served; the others are not touched.

    Attributes follow the OpenAI error body: ``param`` is the field's path, ``code`` a stable word.
    """

    status = 400
    type = "invalid_request_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = str(self)
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(RequestError):
    pass


class ContextLengthExceeded(RequestError):
    code = "context_length_exceeded"


class ModelUnknown(RequestError):
    status = 404
    code = "model_not_found"


class AdapterRefused(RequestError):
    code = "adapter_refused"


class AdapterUnknown(ModelUnknown):
    """No adapter of that name is loaded."""


class AdapterInUse(RequestError):
    status = 409
    code = "adapter_in_use"


class AdaptersFull(RequestError):
    status = 409
    code = "adapters_full"


class Overloaded(RequestError):
    status = 503
    type = "server_error"
    code = "engine_overloaded"
    retry_after_s = 1


class ProjectBusy(Overloaded):
    status = 429
    type = "rate_limit_error"
    code = "project_queue_full"


class DeadlineExceeded(RequestError):
    status = 504
    type = "server_error"
    code = "deadline_exceeded"


class Asleep(Overloaded):
    code = "backend_asleep"
    retry_after_s = 5


class Leaving(Overloaded):
    """It stops, and what it had not begun is for another."""

    code = "backend_leaving"


class CannotSleep(RequestError):
    status = 409
    code = "cannot_sleep"


class CannotScrub(RequestError):
    status = 503
    type = "server_error"
    code = "cannot_scrub"


class CannotWake(RequestError):
    status = 503
    type = "server_error"
    code = "cannot_wake"


class EngineDead(BackendError):
    """The engine process ended or does not answer. Requests get 503 until this backend is replaced."""

    fix = "restart the backend"
