"""The version of the package, written down here alone."""

__version__ = "0.1.0"
