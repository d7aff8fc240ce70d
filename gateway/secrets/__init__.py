"""Where the installation's secrets are: their master key in a file, an HSM or Vault, and how they are replaced.

`gateway.installation` may import it.
"""
