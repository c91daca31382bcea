"""Collects logs and ends, as a power cut would, at the n-th durable step.

Reads lines "root<TAB>log<TAB>n" and answers each with an exit status: 9 when the collection was
ended, 0 when it came to its end. Each runs in a fork of this process, which itself never touches
Storage, whose threads would not survive a fork.
"""

import os
import sys
from pathlib import Path

from collect_rig import Rig
from simulator import Clock

from kvrun.control import alerts, journal, remembered, sources, tail
from kvrun.storage import Storage

left = 0


def step() -> None:
    global left
    if not left:
        os._exit(9)
    left -= 1


def around(owner: type, name: str) -> None:
    original = getattr(owner, name)

    def watched(*arguments: object, **named: object) -> object:
        step()
        result = original(*arguments, **named)
        step()
        return result

    setattr(owner, name, watched)


around(Storage, "create")
around(remembered.Memory, "save")
around(journal.ControlJournal, "record")
around(tail.Tail, "append")
around(tail.Tail, "sync")
around(tail.Tail, "clear")
around(sources.FolderSource, "release")
around(alerts.AlertBook, "save")

for line in sys.stdin:
    root, log, number = line.rstrip("\n").split("\t")
    child = os.fork()
    if not child:
        left = int(number)
        try:
            Rig(Path(root), Clock(1_700_150_000)).collect(Path(log))
            os._exit(0)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
