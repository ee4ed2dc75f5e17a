"""The paper's figures: of the toy model and its flow, and of transformers."""
