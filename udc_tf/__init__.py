"""Unified differentiable search for compressible networks on Arm Ethos-U."""
