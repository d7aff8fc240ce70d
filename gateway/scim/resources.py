"""SCIM users and groups (RFC 7643 §4) from and to JSON, and the published metadata of this server (§5-7)."""

from collections.abc import Mapping
from typing import Any

from gateway.records.provisioning import GroupFields, ProvisionedGroup, ProvisionedUser, UserFields
from gateway.scim.errors import invalid

USER = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP = "urn:ietf:params:scim:schemas:core:2.0:Group"
_CORE = "urn:ietf:params:scim:schemas:core:2.0"
USER_KNOWN = {name.lower(): name for name in ("userName", "externalId", "displayName", "active")}
GROUP_KNOWN = {name.lower(): name for name in ("displayName", "externalId", "members")}
MAX_RESULTS = 200
_BOOLEANS = {"true": True, "false": False}


def user_fields(body: Any) -> UserFields:
    """Return the attributes of a complete user; attributes that are not stored are ignored. Raises ScimError."""
    said = _kept(body, USER_KNOWN, USER)
    name = _text(said, "userName")
    if name is None:
        raise invalid("userName is missing; send it")
    active = said.get("active")
    if isinstance(active, str):  # Microsoft Entra ID sends text
        active = _BOOLEANS.get(active.lower(), active)
    if active is not None and not isinstance(active, bool):
        raise invalid("active is not true or false; send one of these")
    return UserFields(name, _text(said, "externalId"), _text(said, "displayName") or "", active)


def group_fields(body: Any) -> GroupFields:
    """As `user_fields`, for a group."""
    said = _kept(body, GROUP_KNOWN, GROUP)
    name = _text(said, "displayName")
    if name is None:
        raise invalid("displayName is missing; send it")
    members = said.get("members") or []
    if not isinstance(members, list) or not all(isinstance(each, dict) for each in members):
        raise invalid("members is not a list of objects with a value; send one")
    ids = [each.get("value") for each in members]
    if not all(isinstance(each, str) for each in ids):
        raise invalid("a member has no value; send the id of a user")
    return GroupFields(name, _text(said, "externalId"), frozenset(ids))


def user_json(user: ProvisionedUser, base: str) -> dict[str, Any]:
    """Return a user as JSON. base: URL of this server, up to ``/scim/v2``."""
    said: dict[str, Any] = {
        "schemas": [USER],
        "id": user.id,
        "userName": user.name,
        "active": user.active,
        "meta": _meta(user, "User", base),
    }
    if user.display_name:
        said["displayName"] = user.display_name
    if user.external_id is not None:
        said["externalId"] = user.external_id
    if user.groups:
        said["groups"] = [
            {"value": key, "display": name, "$ref": f"{base}/Groups/{key}", "type": "direct"}
            for key, name in user.groups
        ]
    return said


def group_json(group: ProvisionedGroup, base: str) -> dict[str, Any]:
    """As `user_json`, for a group."""
    said: dict[str, Any] = {
        "schemas": [GROUP],
        "id": group.id,
        "displayName": group.name,
        "members": [
            {"value": key, "display": name, "$ref": f"{base}/Users/{key}", "type": "User"}
            for key, name in group.members
        ],
        "meta": _meta(group, "Group", base),
    }
    if group.external_id is not None:
        said["externalId"] = group.external_id
    return said


def chosen(said: dict[str, Any], only: frozenset[str] | None, without: frozenset[str]) -> dict[str, Any]:
    """Return the attributes of a resource that a client selected (RFC 7644 §3.9), by names in lower case. Identifying
    attributes are always included."""

    def is_wanted(name: str) -> bool:
        if name in ("schemas", "id"):
            return True
        return (only is None or name.lower() in only) and name.lower() not in without

    return {name: value for name, value in said.items() if is_wanted(name)}


def etag(resource: ProvisionedUser | ProvisionedGroup) -> str:
    return f'W/"{resource.version}"'


def _meta(resource: ProvisionedUser | ProvisionedGroup, kind: str, base: str) -> dict[str, str]:
    return {
        "resourceType": kind,
        "created": resource.created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "lastModified": resource.changed_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "location": f"{base}/{kind}s/{resource.id}",
        "version": etag(resource),
    }


def _kept(body: Any, known: Mapping[str, str], schema: str) -> dict[str, Any]:
    """Return the stored attributes in `body` under their canonical names. A duplicate name is refused."""
    if not isinstance(body, dict):
        raise invalid("the body is no JSON object; send a resource", "invalidSyntax")
    schemas = next((value for name, value in body.items() if name.lower() == "schemas"), None)
    if not isinstance(schemas, list) or schema not in schemas:
        raise invalid(f"schemas does not name {schema}; send a resource of this type")
    said: dict[str, Any] = {}
    for name, value in body.items():
        if (right := known.get(name.lower())) is not None:
            if right in said:
                raise invalid(f"{right} is given twice; send it once", "invalidSyntax")
            said[right] = value
    return said


def _text(said: Mapping[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is None or value == "":  # both mean unassigned (RFC 7643 §2.5)
        return None
    if not isinstance(value, str):
        raise invalid(f"{name} is no text; send one")
    return value


# Published metadata


def service_provider_config(base: str) -> dict[str, Any]:
    no = {"supported": False}
    return {
        "schemas": [f"{_CORE}:ServiceProviderConfig"],
        "documentationUri": "https://www.rfc-editor.org/rfc/rfc7644",
        "patch": {"supported": True},
        "bulk": {"supported": False, "maxOperations": 0, "maxPayloadSize": 0},
        "filter": {"supported": True, "maxResults": MAX_RESULTS},
        "changePassword": no,
        "sort": no,
        "etag": {"supported": True},
        "authenticationSchemes": [
            {"type": "oauthbearertoken", "name": "Bearer token", "description": "The token of scim.token_file"}
        ],
        "meta": {"resourceType": "ServiceProviderConfig", "location": f"{base}/ServiceProviderConfig"},
    }


def resource_types(base: str) -> list[dict[str, Any]]:
    return [
        {
            "schemas": [f"{_CORE}:ResourceType"],
            "id": kind,
            "name": kind,
            "endpoint": f"/{kind}s",
            "description": f"{kind}s of the installation",
            "schema": schema,
            "meta": {"resourceType": "ResourceType", "location": f"{base}/ResourceTypes/{kind}"},
        }
        for kind, schema in (("User", USER), ("Group", GROUP))
    ]


def schemas(base: str) -> list[dict[str, Any]]:
    """Return the schemas, with stored attributes only."""
    user = [
        _attribute("userName", "Who it is, unique without case", required=True, uniqueness="server"),
        _attribute("displayName", "What the person is called"),
        _attribute("active", "Whether the person may log in", kind="boolean"),
        _attribute("groups", "Groups that the user is in", kind="complex", many=True, mutability="readOnly", parts=[
            _attribute("value", "The id of the group", mutability="readOnly"),
            _attribute("$ref", "Its address", kind="reference", mutability="readOnly", reference=["Group"]),
            _attribute("display", "Its name", mutability="readOnly"),
            _attribute("type", "Always direct", mutability="readOnly"),
        ]),
    ]  # fmt: skip
    group = [
        _attribute("displayName", "Its name, which is mapped to roles", required=True, uniqueness="server"),
        _attribute("members", "Users in it", kind="complex", many=True, parts=[
            _attribute("value", "The id of a user", mutability="immutable"),
            _attribute("$ref", "Its address", kind="reference", mutability="immutable", reference=["User"]),
            _attribute("display", "Its userName", mutability="readOnly"),
            _attribute("type", "Always User", mutability="readOnly"),
        ]),
    ]  # fmt: skip
    return [
        {
            "schemas": [f"{_CORE}:Schema"],
            "id": schema,
            "name": name,
            "description": f"{name}s of the installation",
            "attributes": attributes,
            "meta": {"resourceType": "Schema", "location": f"{base}/Schemas/{schema}"},
        }
        for schema, name, attributes in ((USER, "User", user), (GROUP, "Group", group))
    ]


def _attribute(
    name: str,
    description: str,
    *,
    kind: str = "string",
    many: bool = False,
    required: bool = False,
    mutability: str = "readWrite",
    uniqueness: str = "none",
    reference: list[str] | None = None,
    parts: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    said: dict[str, Any] = {
        "name": name,
        "type": kind,
        "multiValued": many,
        "description": description,
        "required": required,
        "mutability": mutability,
        "returned": "default",
    }
    if kind in ("string", "reference"):
        said |= {"caseExact": kind == "reference" or name == "value", "uniqueness": uniqueness}
    if reference is not None:
        said["referenceTypes"] = reference
    return said if parts is None else said | {"subAttributes": parts}
