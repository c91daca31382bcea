"""A child process that appends until it is killed, and says on stdout what is durable."""

import os
import sys
import threading
import time
from pathlib import Path

from simulator import LOG_ID, sealed, signer

from kvrun.audit import AuditLimits, AuditLog


def main() -> None:
    limits = AuditLimits(segment_bytes=100_000, checkpoint_records=200, checkpoint_seconds=0.02)
    log = AuditLog.open(
        Path(sys.argv[1]), log_id=LOG_ID, signer=signer(), now=time.time, limits=limits
    )
    acknowledge = threading.Lock()

    def work(worker: int) -> None:
        number = 0
        while True:
            number += 1
            event = sealed(int(sys.argv[2]) * 10_000_000 + worker * 1_000_000 + number)
            (seq,) = log.append_durable(event)
            with acknowledge:
                os.write(1, f"{seq} {event.request_id}\n".encode())

    for worker in range(3):
        threading.Thread(target=work, args=(worker,)).start()


if __name__ == "__main__":
    main()
