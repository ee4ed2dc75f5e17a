"""The colours and dashes of every figure, static or interactive."""

from __future__ import annotations

# Okabe and Ito's palette, which the colour-blind can tell apart, ordered so that neighbours differ in lightness too.
# Its yellow is replaced by Tol's wine: on white it cannot be seen.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#882255")
# Tol's light palette, for areas: a strip of roles must not be confused with the lines of heads.
FILLS = ("#77AADD", "#EE8866", "#44BB99", "#EEDD88", "#FFAABB", "#BBCC33", "#99DDFF", "#AAAA00")
NO_ROLE = "#E2E2E2"  # a head that leads no named group
DASHES = ("-", "--", "-.", ":")
PHASE_FILLS = ("#EDEDED", "#F2C48D", "#A5C8A0")  # diffuse, competitive, cooperative
