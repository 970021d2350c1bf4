"""Keras layers of a search and of the networks it finds. They know nothing of plans."""
