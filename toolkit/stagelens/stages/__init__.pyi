from .detect import Stage as Stage, Stages as Stages, detect_stages as detect_stages
from .group import detect_group as detect_group
