"""What goes wrong with data."""


class DataError(ValueError):
    """Data are missing or not as they should be; the message says how to get or mend them."""
