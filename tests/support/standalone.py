"""``verify/kvrun_verify.py`` as a module: the verifier that shares nothing with kvrun."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILE = ROOT / "verify/kvrun_verify.py"


def load() -> Any:
    """The module, loaded from its file."""
    spec = importlib.util.spec_from_file_location("kvrun_verify", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kvrun_verify"] = module
    spec.loader.exec_module(module)
    return module
