"""The figures of the paper, drawn from runs."""
