"""cli: the command line."""

from stagelens.cli.main import main

__all__ = ["main"]
