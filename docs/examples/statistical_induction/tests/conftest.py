"""Adds the fixtures `host` and `lab` of stagelens, and finds this plugin without installing it."""

pytest_plugins = ["stagelens.testing.fixtures"]
