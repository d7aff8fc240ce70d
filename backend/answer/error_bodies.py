"""What a client may know of an error. The only place that decides it."""

import logging
import traceback

from starlette.responses import Response

from backend.errors import EngineDead, Overloaded, RequestError
from backend.wire import ErrorBody, ErrorDetail

log = logging.getLogger(__name__)

JSON = "application/json"


class ModelFailed(Exception):
    """Its message may be shown."""


def error_body(error: Exception) -> ErrorBody:
    """What a client may know of an error. The only place that decides it."""
    match error:
        case RequestError():
            return ErrorBody(
                error=ErrorDetail(message=error.message, type=error.type, param=error.param, code=error.code)
            )
        case EngineDead():
            return ErrorBody(error=ErrorDetail(message=str(error), type="server_error", code="engine_unavailable"))
        case ModelFailed():
            return ErrorBody(error=ErrorDetail(message=str(error), type="server_error", code="model_failed"))
        case _:
            # Class and lines only: the message of an unforeseen error may quote a prompt.
            where = "; ".join(f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__))
            log.error("unforeseen %s at %s; report it with these lines", type(error).__name__, where)
            return ErrorBody(error=ErrorDetail(message="internal error", type="server_error", code="internal_error"))


def error_response(error: Exception) -> Response:
    headers = {}
    status = 500
    if isinstance(error, RequestError):
        status = error.status
    elif isinstance(error, EngineDead):
        status = 503
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(error.retry_after_s)
    return Response(error_body(error).model_dump_json(), status, headers, media_type=JSON)
