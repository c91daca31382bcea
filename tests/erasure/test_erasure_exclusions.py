"""A certificate says what it does not cover, by its class and by what the operator declared."""

import pytest

from kvrun.erasure.statement import exclusions
from kvrun.keys.filesystem import ClaimClass

UNDECLARED = "of which the operator said nothing"


@pytest.mark.parametrize(
    ("claim", "declared", "said"),
    [
        (ClaimClass.DEVICE, False, True),
        (ClaimClass.DEVICE, True, False),
        (ClaimClass.LOGICAL, False, False),
        (ClaimClass.CRYPTOGRAPHIC, False, False),
    ],
)
def test_a_date_that_rests_on_no_declaration_is_excluded(
    claim: ClaimClass, declared: bool, said: bool
) -> None:
    found = exclusions(claim, declared=declared)
    assert any(UNDECLARED in text for text in found) == said


@pytest.mark.parametrize("claim", ClaimClass)
def test_every_class_names_its_own_weakness_and_keeps_the_notes(claim: ClaimClass) -> None:
    found = exclusions(claim, ("an engine zeroed nothing",), declared=True)
    assert "an engine zeroed nothing" in found
    assert set(found) - set(exclusions(None, ("an engine zeroed nothing",), declared=True))
