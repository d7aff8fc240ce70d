"""The test of a text for a tenant's watermarks: which keys are tried, where the text may go for it, and what is said.

Imported by the admin API, the command and what puts a gateway together."""
