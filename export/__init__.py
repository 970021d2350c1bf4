"""From a trained network to the bytes in flash, and to running them before a board exists."""
