"""The long set: run by `make stress`, not by `make test`. It shares the helpers of the toolkit's tests."""

from __future__ import annotations

from kit.victims import library, victims  # noqa: F401
