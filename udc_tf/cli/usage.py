"""Mistakes of the user, which end in one line."""


class UsageError(ValueError):
    """A flag or a work directory is not as it should be; the message says what would be right."""
