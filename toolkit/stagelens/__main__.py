"""`python -m stagelens` is the command `stagelens`."""

import sys

from stagelens.cli import main

if __name__ == "__main__":
    sys.exit(main())
