"""The claims R1 to R9: what the paper states, measured."""
