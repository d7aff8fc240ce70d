"""Detection of a tenant's watermarks in a text: keys to try, backends that may read the text, and the reported result.

Imported by the admin API, the command and what puts a gateway together."""
