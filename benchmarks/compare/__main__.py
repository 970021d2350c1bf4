"""The command `python -m benchmarks.compare`; `command.py` says what it does."""

from absl import app, flags

from benchmarks.compare.command import compare
from benchmarks.compare.options import define_flags

if __name__ == "__main__":
    define_flags()
    app.run(lambda _: print(compare(flags.FLAGS)))
