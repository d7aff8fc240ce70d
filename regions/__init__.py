"""Places, operators, backends, their identities, and the choice among them."""
