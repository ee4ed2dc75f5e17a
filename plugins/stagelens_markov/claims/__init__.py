"""The claims M1 to M13: `trained` has those about trained models, `flow` those about the regression variant."""
