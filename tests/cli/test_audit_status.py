"""``kvrun status`` says how the audit log is doing."""

from kvrun.audit.settings import LogHealth
from kvrun.cli.status import audit_text


def test_a_healthy_log_is_one_line() -> None:
    assert audit_text(LogHealth(True, "", 7, 79, 100, 0)).plain == "7 records, can be written"


def test_a_log_that_fills_up_says_what_to_do_from_80_percent_on() -> None:
    text = audit_text(LogHealth(True, "", 7, 80 * 2**20, 100 * 2**20, 0)).plain
    assert "80.0 MiB of 100.0 MiB wait to be collected" in text
    assert "kvrun audit collect" in text


def test_a_log_that_cannot_be_written_says_why_and_what_was_lost() -> None:
    text = audit_text(LogHealth(False, "No space left on device", 7, 0, 100, 3)).plain
    assert "CANNOT be written: No space left on device" in text
    assert "3 records were lost" in text
