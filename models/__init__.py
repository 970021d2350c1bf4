"""Networks and data sets to start from."""
