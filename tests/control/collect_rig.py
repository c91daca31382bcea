"""A collector over folders, and a log of the audit adversary's to collect."""

from dataclasses import dataclass, field
from pathlib import Path

from simulator import Clock

from kvrun.audit.record import decode_record
from kvrun.audit.segment import list_segments
from kvrun.config.layout import DataLayout, storage_prefix
from kvrun.control.alarm import Alarm
from kvrun.control.alerts import Alert, AlertBook
from kvrun.control.collector import Collector, CollectReport, Target
from kvrun.control.cosigner import open_cosigner
from kvrun.control.journal import ControlJournal
from kvrun.control.remembered import Memory, log_folder
from kvrun.control.sources import FolderSource, LogSource
from kvrun.control.witness import Witness
from kvrun.storage import Storage, open_storage

WORKSPACE, DEPLOYMENT = "w1", "d1"


@dataclass
class Rig:
    """The control plane in ``root``: everything that is collected goes to ``root``/storage."""

    root: Path
    clock: Clock = field(default_factory=lambda: Clock(1_700_100_000))
    witnesses: list[Witness] = field(default_factory=list)
    storage: Storage | None = None

    def __post_init__(self) -> None:
        self.layout = DataLayout(self.root)
        self.storage = self.storage or open_storage(f"file://{self.layout.storage_root}")
        self.memory = Memory(self.layout.control / "logs")
        self.alerts = AlertBook(self.layout.control / "alerts")
        self.journal = ControlJournal(self.layout, WORKSPACE, self.clock)

    @property
    def collector(self) -> Collector:
        """A fresh one, as after a restart."""
        assert self.storage is not None
        return Collector(
            storage=self.storage,
            memory=self.memory,
            alerts=self.alerts,
            journal=self.journal,
            cosigner=open_cosigner(self.layout, self.clock),
            witnesses=self.witnesses,
            now=self.clock,
        )

    @property
    def alarm(self) -> Alarm:
        return Alarm(self.alerts, self.memory, self.journal, self.clock)

    def collect(self, log: Path | LogSource, reason: str = "scheduled") -> CollectReport:
        source = FolderSource(log) if isinstance(log, Path) else log
        return self.collector.collect(Target(source, WORKSPACE, DEPLOYMENT), reason=reason)

    def folder(self, log: str, generation: int = 1) -> Path:
        """Where a log is collected to."""
        prefix = storage_prefix(WORKSPACE, DEPLOYMENT)
        return self.layout.storage_root / prefix / "audit" / log_folder(log, generation)

    def logged(self) -> list[tuple[str, str]]:
        """Event and reason of every record of the control plane's log about logs."""
        if not self.journal.folder.exists():
            return []
        lines = b"".join(path.read_bytes() for path in list_segments(self.journal.folder))
        records = [decode_record(line) for line in lines.splitlines()]
        return [(str(item.event), item.reason) for item in records if item.request_id]

    def alert(self) -> Alert:
        """The one alert that there is."""
        (found,) = self.alerts.all()
        return found
