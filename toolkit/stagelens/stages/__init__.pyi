from .components import Components as Components, components as components
from .detect import Stage as Stage, Stages as Stages, detect_stages as detect_stages
from .group import detect_group as detect_group
from .joint import (
    JointStage as JointStage,
    JointStages as JointStages,
    Mover as Mover,
    joint_stages as joint_stages,
    series_moved as series_moved,
)
from .tables import tables_of as tables_of
