"""The admin API, ``/admin/v1``: what an operator or a tenant's own people may see and change."""
