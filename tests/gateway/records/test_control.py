"""What administrators do has a type in the record, or could not be done: a change that is not recorded is not made."""

from typing import get_args

from audit.events.event import AdminChanged
from gateway.records.control import AdminEvent

OF_THEIR_OWN = {"oversight.stopped", "oversight.resumed"}
"""Acts of oversight have types of their own (`gateway.installation.admin_record`)."""


def test_every_change_has_its_type_in_the_record_and_no_type_is_without_its_change():
    actions = set(get_args(AdminEvent.model_fields["action"].annotation))
    types = set(get_args(AdminChanged.model_fields["type"].annotation))
    assert {f"admin.{action}" for action in actions - OF_THEIR_OWN} == types
