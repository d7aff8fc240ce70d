"""The time that a newcomer needs, measured by the commands of the documentation."""
