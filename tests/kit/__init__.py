"""Helpers that tests of all rooms share; README.md in the folder above explains them."""
