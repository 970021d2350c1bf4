"""Where the tests find the repository, and data that may lie beside it."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"  # not part of the repository: tests that read it skip without it
