"""Saved checkpoints, named by step, as a timeline: what `stagelens probe` does."""
