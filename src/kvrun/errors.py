"""The one error family of kvrun.

Every error that a person may meet derives from :class:`KvrunError`. The CLI prints
``diagnostics()`` and exits with ``exit_code``; the API turns the same fields into a problem
response. Packages define their own subclasses beside the code that raises them.
"""


class KvrunError(Exception):
    """Something went wrong that a person can understand and act on.

    ``message`` names what was wrong and where; ``hint`` says what is allowed or what to do next.
    """

    exit_code: int = 1
    status: int = 500

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def diagnostics(self) -> str:
        """The error as text for people: what was wrong, then what to do about it."""
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"
