"""How commands speak to the user: where their lines go, and mistakes, which end in one line."""

from collections.abc import Callable

Say = Callable[[str], object]  # takes a line: `print`, or nothing for workers beside the chief


class UsageError(ValueError):
    """A flag or a work directory is not as it should be; the message says what would be right."""
