"""The audit adversary and the S3 server are simulators of these tests too."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / name) for name in ("audit", "storage")]
