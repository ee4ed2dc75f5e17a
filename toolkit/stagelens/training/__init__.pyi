from .ensemble import Ensemble as Ensemble, run_ensemble as run_ensemble
from .plan import probe_names as probe_names, resolve_task as resolve_task
from .running import run as run
from .saved_checkpoints import (
    Series as Series,
    find_series as find_series,
    load_batch as load_batch,
    probe_series as probe_series,
)
from .stackable import why_not as why_not
from .stacking import Stacked as Stacked
from .writer import Page as Page, Progress as Progress
