"""The trained tasks: the toy model, and transformers on regression and on key-value recall."""
