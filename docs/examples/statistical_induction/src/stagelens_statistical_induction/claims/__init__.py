"""The claims of the paper."""
