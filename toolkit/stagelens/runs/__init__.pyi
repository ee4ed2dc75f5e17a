from .checkpoint import check_size as check_size
from .choosing import ordered_by as ordered_by, where as where
from .commands import run_call as run_call, run_command as run_command
from .defects import defect_of as defect_of, defects_in as defects_in
from .folders import (
    POINTS as POINTS,
    SWEEP_FILE as SWEEP_FILE,
    SWEEPS as SWEEPS,
    catalogue as catalogue,
    load as load,
    points_of as points_of,
    runs_folder as runs_folder,
)
from .lock import LOCK as LOCK, held as held, is_being_written as is_being_written
from .manifest import (
    DETECTOR as DETECTOR,
    FILE as FILE,
    VECTORIZED as VECTORIZED,
    Manifest as Manifest,
    Status as Status,
    load_manifest as load_manifest,
    new_manifest as new_manifest,
    this_process as this_process,
    versions as versions,
)
from .placing import (
    Notify as Notify,
    choose_folder as choose_folder,
    free_name as free_name,
    remove_unmeasured as remove_unmeasured,
    replacing as replacing,
    taken_up as taken_up,
)
from .run import Run as Run
from .store import Store as Store, read_measurements as read_measurements
