from .alignment import ALIGNMENTS as ALIGNMENTS, UNBOUNDED as UNBOUNDED
from .comparison import (
    EVERY as EVERY,
    SPREAD as SPREAD,
    AlignedRuns as AlignedRuns,
    Curve as Curve,
    align_runs as align_runs,
)
from .grouping import RunGroup as RunGroup
from .members import Member as Member, Members as Members
