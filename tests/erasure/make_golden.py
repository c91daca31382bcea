"""Write the golden certificates of this version, once: ``python tests/erasure/make_golden.py``."""

from pathlib import Path

import msgspec
from certificate_world import Operator, opening, parent, statement

from kvrun import __version__
from kvrun.erasure.certificate import Software
from kvrun.erasure.trust import make_anchor
from kvrun.keys.filesystem import ClaimClass

FOLDER = Path(__file__).parents[1] / "vectors/golden"


def main() -> None:
    """Refuses to write over what a release has issued."""
    operator = Operator()
    anchor = make_anchor(
        [operator.signer.public()], [operator.log_signer.key], [operator.witness_key]
    )
    contents = {"trust": anchor, "opening": opening()}
    kinds = {
        "certificate": statement(),
        "deletion-record": statement(claim_class=ClaimClass.LOGICAL),
        "parent": parent(),
    }
    for kind, what in kinds.items():
        issued = msgspec.structs.replace(what, software=Software(version=__version__))
        contents[kind] = operator.issue(issued).data
    for kind, data in contents.items():
        with (FOLDER / f"{__version__}-{kind}.json").open("xb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
