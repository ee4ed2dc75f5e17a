from .estimating import estimate as estimate
from .laws import Law as Law, fit_law as fit_law
from .measures import Measure as Measure, parse_measure as parse_measure
from .sweeping import (
    Sweep as Sweep,
    SweepPlan as SweepPlan,
    Tally as Tally,
    Watch as Watch,
    check_columns as check_columns,
    execute as execute,
    gather as gather,
    parse_columns as parse_columns,
    plan_sweep as plan_sweep,
    sweep as sweep,
)
