"""Random words and files for the command line."""
