"""What a tenant lacks until its first answer, as the command that brings it."""

from gateway.database.database import Database
from gateway.store.reports.fleet_inventory import deployments_in
from gateway.store.reports.inventory import Inventory

FIRST_TENANT = "domicile tenant create acme --preset eu-strict"


def next_step(database: Database, tenant: str) -> str:
    """The command that comes next for `tenant`; `domicile up` where nothing is missing. Raises DatabaseUnavailable,
    NotFound."""
    inventory = Inventory(database)
    if not any(version.active and version.project is None for version in inventory.policies(tenant)):
        return f"domicile policy new {tenant} --preset eu-strict --output {tenant}.yaml"
    projects = [project.id for project in inventory.projects(tenant) if project.revoked_at is None]
    if not projects:
        return f"domicile project create {tenant} support --purpose 'customer support' --legal-basis contract"
    served = any(backend.revoked_at is None for backend in inventory.backends(tenant))
    if not served and not any(each.deleted_at is None for each in deployments_in(database, tenant).items):
        return f"domicile deployment create {tenant} small --model small --weights PATH --region REGION"
    if not any(key.revoked_at is None for key in inventory.keys(tenant)):
        return f"domicile key create {tenant} {projects[0]}"
    return "domicile up"
