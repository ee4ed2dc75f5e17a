"""The trained tasks: the simplified model, and models on sampled sequences."""
