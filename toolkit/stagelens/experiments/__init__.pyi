from .batches import (
    Batches as Batches,
    FixedBatch as FixedBatch,
    eval_batch as eval_batch,
    map_tensors as map_tensors,
    move as move,
    own as own,
)
from .config import (
    Config as Config,
    FlowConfig as FlowConfig,
    TaskConfig as TaskConfig,
    as_settings as as_settings,
    config_defaults as config_defaults,
    first_error as first_error,
    make_config as make_config,
    text_of as text_of,
    validate as validate,
)
from .description import config_keys as config_keys
from .exact import exact_with_hooks as exact_with_hooks
from .experiment import Experiment as Experiment
from .finite import FirstBad as FirstBad
from .flow import (
    Diverged as Diverged,
    Event as Event,
    Floats as Floats,
    Flow as Flow,
    State as State,
    integrate as integrate,
)
from .groups import Batch as Batch, Group as Group, token_groups as token_groups, tokens_of as tokens_of
from .own_loop import OwnLoop as OwnLoop
from .prediction import (
    Prediction as Prediction,
    Score as Score,
    nearest_pairs as nearest_pairs,
    score as score,
    too_late as too_late,
)
from .random_matrices import haar as haar
from .schedule import CHECKPOINTS as CHECKPOINTS, Schedule as Schedule
from .solving import Solution as Solution, solve as solve
from .stage_settings import StageSettings as StageSettings, differences as differences, stage_settings as stage_settings
from .task import Task as Task, TrainingPhase as TrainingPhase
from .times import recording_times as recording_times
from .training import (
    SMALLER as SMALLER,
    Trainer as Trainer,
    Training as Training,
    fused as fused,
    step_scheduler as step_scheduler,
    trained as trained,
    update as update,
)
