"""The colours and dashes of every figure, static or interactive."""

from __future__ import annotations

# Okabe and Ito's palette, which the colour-blind can tell apart, ordered so that neighbours differ in lightness too.
# Its yellow is left out: on white it cannot be seen.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
