"""The trained tasks: the toy models, and a transformer on text."""
