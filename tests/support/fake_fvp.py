#!/usr/bin/env python3
"""A FAKE of Arm's Corstone-300 model: it takes the same command line and replays a log.

It simulates nothing. It lets the `fvp` runner be tested where the real model is not installed.
FAKE_FVP_LOG names the UART log to replay, FAKE_FVP_SEEN a file for the command line,
FAKE_FVP_DUMP a file whose bytes it dumps as the guest's memory, FAKE_FVP_HANG=1 makes it hang as a
real model may.
"""

import json
import os
import pathlib
import sys
import time


def main() -> int:
    arguments = sys.argv[1:]
    settings, rest, data = {}, [], {}
    while arguments:
        argument = arguments.pop(0)
        if argument == "-C":
            name, _, value = arguments.pop(0).partition("=")
            settings[name] = value
        elif argument in ("-a", "--timelimit", "--dump"):
            settings[argument] = arguments.pop(0)
        elif argument == "--data":
            file, _, address = arguments.pop(0).rpartition("@")
            data[address] = pathlib.Path(file).read_bytes().hex()
        else:
            rest.append(argument)
    seen = {**settings, "rest": rest, "data": data}
    pathlib.Path(os.environ["FAKE_FVP_SEEN"]).write_text(json.dumps(seen))
    print("Fast Models [fake] - replays a log, simulates nothing", flush=True)
    if not pathlib.Path(settings["-a"]).read_bytes().startswith(b"\x7fELF"):
        print("Error: no ELF")
    if os.environ.get("FAKE_FVP_HANG"):
        time.sleep(60)
    sys.stdout.write(pathlib.Path(os.environ["FAKE_FVP_LOG"]).read_text())
    if "FAKE_FVP_DUMP" in os.environ:
        file, _, where = settings["--dump"].rpartition("@")
        memory = pathlib.Path(os.environ["FAKE_FVP_DUMP"]).read_bytes()
        pathlib.Path(file).write_bytes(memory[: int(where.split(",")[1])])
    if "--stat" in rest:
        print("\n--- fake statistics: ---------------------------------------------")
        print("Simulated time                          : 0.012500s")
        print("Wall time                               : 0.250000s")
    return 0  # as the real model: whatever the application said


if __name__ == "__main__":
    sys.exit(main())
