"""One export or verification in a process of its own, for :mod:`kvrun.bench.evidence`."""

import json
import resource
import sys
import time
from pathlib import Path

from kvrun.api.home import home_of
from kvrun.bench.evidence_world import SEED, YEAR, config_of
from kvrun.erasure.trust import parse_anchor
from kvrun.evidence.anchor import scope_anchor
from kvrun.evidence.check import check_bundle
from kvrun.evidence.export import Request, export_bundle
from kvrun.evidence.scope import scope_of_config


def main(what: str, folder: Path, name: str, sample: int, *, full: bool) -> None:
    """Do it and print one JSON object."""
    config = config_of(folder)
    scope = scope_of_config(config, home_of(config))
    path, code = folder / name, 0
    began = time.monotonic()
    if what == "export":
        export_bundle(scope, Request(YEAR, sample=sample, seed=SEED, full=full), path)
    else:
        anchor = parse_anchor(scope_anchor(scope))
        report = check_bundle(path, anchor=anchor, now=time.time())
        code = report.exit_code
        for item in report.failed:
            sys.stderr.write(f"{item.check}: {item.detail}\n")
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "wall_s": time.monotonic() - began,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_bytes": _peak_bytes(),
        "size_bytes": path.stat().st_size,
        "exit_code": code,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


def _peak_bytes() -> int:
    """Of this process alone: ``ru_maxrss`` begins with what the one that started it had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kib) * 1024


if __name__ == "__main__":
    main(
        sys.argv[1],
        Path(sys.argv[2]).absolute(),
        sys.argv[3],
        int(sys.argv[4]),
        full=sys.argv[5] == "full",
    )
