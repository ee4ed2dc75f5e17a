"""Watching: attention of any PyTorch model under TransformerLens' hook names, without changing the model."""
