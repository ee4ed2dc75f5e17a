"""The data: random tokens of the toy tasks, and text."""
