"""The long set: run by `make torture`, not by `make test`. It shares the helpers of the toolkit's tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "toolkit"))

from faulty import library, victims  # noqa: F401
