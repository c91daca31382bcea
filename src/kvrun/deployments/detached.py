"""Becomes another program, after noting in an inherited file which process it is.

``python -m kvrun.deployments.detached DESCRIPTOR ATTEMPT COMMAND...`` The descriptor is a locked
file: the lock lasts exactly as long as the process, whatever becomes of who started it.
"""

from __future__ import annotations

import json
import os
import sys

from kvrun.instance.known_engines import process_start


def main(arguments: list[str]) -> None:
    """Write the note, then run the command in this process."""
    descriptor, attempt, *command = arguments
    note = {"pid": os.getpid(), "started": process_start(os.getpid()), "attempt": int(attempt)}
    os.ftruncate(int(descriptor), 0)
    os.pwrite(int(descriptor), json.dumps(note).encode(), 0)
    os.execv(command[0], command)  # noqa: S606 - the launcher's own command, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
