from .api import (
    Recorder as Recorder,
    probe_checkpoints as probe_checkpoints,
    run as run,
    run_ensemble as run_ensemble,
)
from .base import StagelensError as StagelensError
from .claims import Check as Check, Claim as Claim
from .experiments import (
    Event as Event,
    Flow as Flow,
    FlowConfig as FlowConfig,
    Group as Group,
    Prediction as Prediction,
    Schedule as Schedule,
    Task as Task,
    TaskConfig as TaskConfig,
    TrainingPhase as TrainingPhase,
    token_groups as token_groups,
)
from .hookspecs import hookimpl as hookimpl
from .host import (
    ClaimRef as ClaimRef,
    FigureRef as FigureRef,
    ProbeRef as ProbeRef,
    Registration as Registration,
    TaskRef as TaskRef,
)
from .models import fast as fast, watch as watch
from .recording import Probe as Probe, probe as probe
from .report import Comparison as Comparison, compare as compare
from .runs import Run as Run, load as load
from .stages import Stage as Stage, detect_stages as detect_stages, joint_stages as joint_stages
from .sweeps import Law as Law, Sweep as Sweep, fit_law as fit_law, sweep as sweep
from .timelines import Reading as Reading, Timeline as Timeline
from .training import Ensemble as Ensemble

__version__: str
