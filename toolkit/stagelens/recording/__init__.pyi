from .context import ProbeContext as ProbeContext, Site as Site, causal_keys as causal_keys
from .errors import DoesNotApply as DoesNotApply
from .guard import ModelChanged as ModelChanged
from .limits import armed as armed, contained as contained
from .precision import wide as wide
from .probes import (
    Omitted as Omitted,
    Probe as Probe,
    Reduced as Reduced,
    layers as layers,
    probe as probe,
    stack_layers as stack_layers,
)
from .queries import Queries as Queries, rows_of as rows_of
from .recorder import Recorder as Recorder
from .shared_pass import Observed as Observed, observe as observe
