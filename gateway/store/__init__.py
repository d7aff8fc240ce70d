"""What the gateways of one cell know: tenants, projects, keys, policies, backends. Not on the way of a request."""
