"""Layers for the search and for the networks it finds."""
