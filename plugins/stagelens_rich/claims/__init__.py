"""The claims G1 to G11: what the paper states, measured."""
