"""The data: single-location regression for the toy model, and the sequences of both transformers."""
