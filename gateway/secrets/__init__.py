"""Where the installation's secrets are: their master key in a file or in HashiCorp Vault, and how they are replaced."""
