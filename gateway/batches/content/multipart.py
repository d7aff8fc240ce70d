"""A ``multipart/form-data`` body (RFC 7578), read as it comes: no file is held whole, or written to disk in clear.

Built on python-multipart's parser; Starlette's own form parser spools files into temporary files as they are.
"""

from collections.abc import AsyncIterator

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import InvalidRequest

MAX_FIELD = 4096
"""Bytes of a field that is no file. The parser bounds the head of a part."""
MAX_FIELDS = 32


class FormReader:
    """Iterate over it for the bytes of the part `file`; after that `fields` holds the others and `filename` its name.

    Raises InvalidRequest for a body that is no form, or has not exactly one file.
    """

    def __init__(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidRequest(
                "The body is not a form; send multipart/form-data with purpose and file", code="invalid_form"
            )
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._body = body
        self._parts = 0
        self._field = bytearray()
        self._said = bytearray()
        self._disposition = b""
        self._name = ""
        self._is_file = False
        self._value = bytearray()
        self._file = bytearray()
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_begin": self._begin_header,
                "on_header_field": self._take_field,
                "on_header_value": self._take_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_head,
                "on_part_data": self._take_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            try:
                self._parser.write(piece)
            except MultipartParseError:
                raise InvalidRequest(
                    "The body is not a valid form; send multipart/form-data", code="invalid_form"
                ) from None
            if self._file:
                data, self._file = bytes(self._file), bytearray()
                yield data
        if not self._ended:
            raise InvalidRequest("The form ends too early; send it to its last boundary", code="invalid_form")
        if self.filename is None:
            raise InvalidRequest("The form has no part file; add it", param="file", code="missing_required_parameter")

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_FIELDS:
            raise InvalidRequest(
                f"The form has more than {MAX_FIELDS} parts; send purpose and file", code="invalid_form"
            )
        self._disposition, self._name, self._is_file, self._value = b"", "", False, bytearray()

    def _begin_header(self) -> None:
        self._field, self._said = bytearray(), bytearray()

    def _take_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _take_value(self, data: bytes, start: int, end: int) -> None:
        self._said += data[start:end]

    def _end_header(self) -> None:
        if bytes(self._field).lower() == b"content-disposition":
            self._disposition = bytes(self._said)

    def _end_head(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        self._is_file = self._name == "file"
        if self._is_file:
            if self.filename is not None:
                raise InvalidRequest("The form has two parts file; send one", param="file", code="invalid_form")
            if filename is None:
                raise InvalidRequest(
                    "The part file is no file; send it with a filename", param="file", code="invalid_type"
                )
            self.filename = filename.decode("utf-8", "replace")[:255]

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._file += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD:
            raise InvalidRequest("A field of the form is too long; send purpose and file", code="invalid_form")

    def _end_part(self) -> None:
        if not self._is_file and self._name:
            self.fields[self._name[:64]] = self._value.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True
