"""Files that hold secrets, as `audit.secret_file` keeps them: the record's own are the lowest of them."""

from audit.secret_file import LoosePermissions, create_secret, read_secret, replace_secret, shred_secret, write_secret

__all__ = ["LoosePermissions", "create_secret", "read_secret", "replace_secret", "shred_secret", "write_secret"]
