"""The paper's statements as claims: S1 to S7 about the toy model, S8 to S12 about transformers."""
