"""Error responses of SCIM (RFC 7644 §3.12)."""

ERROR = "urn:ietf:params:scim:api:messages:2.0:Error"


class ScimError(Exception):
    """A refused request. `kind`: the standard's ``scimType``, if it defines one for the case."""

    def __init__(self, status: int, detail: str, kind: str | None = None) -> None:
        super().__init__(detail)
        self.status, self.kind = status, kind

    @property
    def body(self) -> dict[str, object]:
        said: dict[str, object] = {"schemas": [ERROR], "status": str(self.status), "detail": str(self)}
        return said if self.kind is None else said | {"scimType": self.kind}


def invalid(detail: str, kind: str = "invalidValue") -> ScimError:
    return ScimError(400, detail, kind)
