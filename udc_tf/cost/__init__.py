"""What a network costs, one file per cost, and the targets that bound a cost."""
