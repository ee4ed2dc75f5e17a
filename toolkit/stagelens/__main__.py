"""`python -m stagelens` is the command `stagelens`."""

from stagelens.cli import main

if __name__ == "__main__":
    main()
