"""What probes raise."""


class DoesNotApply(Exception):
    """Raised by a probe that finds out only from the activations or the output that it does not apply."""
