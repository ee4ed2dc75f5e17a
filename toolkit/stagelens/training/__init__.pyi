from .ensemble import Ensemble as Ensemble, run_ensemble as run_ensemble
from .open_run import save_timeline as save_timeline
from .own_loop import Recorder as Recorder
from .plan import probe_names as probe_names, resolve_task as resolve_task
from .running import run as run
from .saved_checkpoints.probing import probe_checkpoints as probe_checkpoints
from .stackable import why_not as why_not
from .stacking import Stacked as Stacked
from .writer import Page as Page, Progress as Progress
