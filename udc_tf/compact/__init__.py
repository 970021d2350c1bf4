"""What a search yields: the architecture and the small network built from it."""
