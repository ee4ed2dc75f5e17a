"""The paper's figures: `trained` (Figs. 1 to 9), `flow` (Fig. 10) and `spare` (more heads than intervals)."""
