"""UDC beside what else there is, at equal flash and equal training; begin with `command.py`."""
