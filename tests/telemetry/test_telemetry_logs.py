"""A log line is one line, and holds no key, no token and no exception's quotes."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from kvrun.errors import KvrunError
from kvrun.telemetry.logs import LogFormat, configure_logging

KEY = "kvk_" + "a" * 43
CLAIM = "kvc1.0123456789abcdef.eyJ0ZW5hbnQiOiJhbGljZSJ9.c2lnbmF0dXJl"
TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2ln"


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """What is logged, with everything as it was before afterwards."""
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raises
    logging.captureWarnings(False)


def test_a_json_line_says_when_who_and_what(said: io.StringIO) -> None:
    configure_logging("gateway", level="info", log_format=LogFormat.JSON, stream=said)
    logging.getLogger("kvrun.gateway").warning("request %s broke off", "kvr-1")
    logging.getLogger("kvrun.gateway").debug("not at this level")
    line = json.loads(said.getvalue())
    assert said.getvalue().count("\n") == 1
    assert line["time"].endswith("Z")
    assert (line["level"], line["logger"], line["process"]) == (
        "warning",
        "kvrun.gateway",
        "gateway",
    )
    assert line["message"] == "request kvr-1 broke off"


@pytest.mark.parametrize("log_format", LogFormat)
def test_nobody_can_end_a_line_and_begin_another(said: io.StringIO, log_format: LogFormat) -> None:
    configure_logging("gateway", level="info", log_format=log_format, stream=said)
    forged = "x\n2026-01-01 00:00:00,000 INFO kvrun: all is well\x1b[2J\u2028"
    logging.getLogger("kvrun").warning("%s", forged)
    assert said.getvalue().count("\n") == 1
    assert len(said.getvalue().splitlines()) == 1
    assert "\x1b" not in said.getvalue()


@pytest.mark.parametrize("log_format", LogFormat)
@pytest.mark.parametrize("secret", [KEY, CLAIM, TOKEN, f"Bearer {KEY}", "bearer opaque-token"])
def test_what_looks_like_a_key_or_token_is_replaced(
    said: io.StringIO, log_format: LogFormat, secret: str
) -> None:
    configure_logging("gateway", level="info", log_format=log_format, stream=said)
    logging.getLogger("kvrun").warning("refused %s here", secret)
    assert secret.split()[-1] not in said.getvalue()
    assert "refused [removed] here" in said.getvalue()


@pytest.mark.parametrize("log_format", LogFormat)
def test_an_exception_shows_its_kind_and_place_but_not_what_it_quotes(
    said: io.StringIO, log_format: LogFormat
) -> None:
    configure_logging("gateway", level="info", log_format=log_format, stream=said)
    try:
        try:
            {}["alice@example.com"]
        except KeyError as error:
            raise ValueError("bad prompt: my password is hunter2") from error
    except ValueError:
        logging.getLogger("kvrun").exception("request %s failed", "kvr-2")
    text = said.getvalue()
    assert "ValueError" in text
    assert "KeyError" in text
    assert "test_telemetry_logs.py" in text
    assert "hunter2" not in text
    assert "alice" not in text


def test_errors_of_kvrun_and_of_the_system_keep_their_text(said: io.StringIO) -> None:
    configure_logging("instance", level="info", log_format=LogFormat.JSON, stream=said)
    for error in (KvrunError("the key root is away"), OSError(28, "No space left on device")):
        try:
            raise error
        except (KvrunError, OSError):
            logging.getLogger("kvrun").exception("housekeeping failed")
    first, second = (json.loads(line) for line in said.getvalue().splitlines())
    assert first["error"][0] == "KvrunError: the key root is away"
    assert second["error"][0] == "OSError: No space left on device"


def test_a_message_that_cannot_be_formatted_prints_no_arguments(
    said: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("gateway", level="info", log_format=LogFormat.JSON, stream=said)
    logging.getLogger("kvrun").warning("%d tokens", "hunter2")
    shown = capsys.readouterr()
    assert "hunter2" not in said.getvalue() + shown.out + shown.err
