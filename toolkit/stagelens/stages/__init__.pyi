from .detect import Stage as Stage, Stages as Stages, detect_group as detect_group, detect_stages as detect_stages
