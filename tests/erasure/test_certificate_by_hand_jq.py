"""The commands of docs/certificates.md check a certificate with jq, openssl and sha256sum."""

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/vectors/golden"


def by_hand(folder: Path) -> subprocess.CompletedProcess[str]:
    page = (ROOT / "docs/certificates.md").read_text().split("## Check it by hand")[1]
    found = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return subprocess.run(
        ["bash", "-ec", found[1]], cwd=folder, capture_output=True, text=True, check=False
    )


def lay_out(folder: Path) -> None:
    for name, source in (("certificate", "certificate"), ("anchor", "trust"), ("opening",) * 2):
        shutil.copy(GOLDEN / f"0.1.0-{source}.json", folder / f"{name}.json")


def test_the_commands_verify_a_golden_certificate(tmp_path: Path) -> None:
    lay_out(tmp_path)
    done = by_hand(tmp_path)
    assert done.returncode == 0, done.stderr
    first, *digests = done.stdout.splitlines()
    assert first == "Signature Verified Successfully"
    commitment, opening, digest, statement = (line.split()[0] for line in digests)
    assert (commitment, digest) == (opening, statement)


def test_the_commands_refuse_a_changed_statement(tmp_path: Path) -> None:
    lay_out(tmp_path)
    path = tmp_path / "certificate.json"
    path.write_bytes(path.read_bytes().replace(b"eyJ", b"eyK", 1))
    done = by_hand(tmp_path)
    assert done.returncode != 0
