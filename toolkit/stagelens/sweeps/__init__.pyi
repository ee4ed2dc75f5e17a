from .checking import check_measures as check_measures, flow_at_start as flow_at_start
from .estimating import estimate as estimate, seconds_of as seconds_of
from .laws import Law as Law, fit_law as fit_law
from .measures import Measure as Measure, parse_measure as parse_measure
from .plan import (
    SweepPlan as SweepPlan,
    check_columns as check_columns,
    parse_columns as parse_columns,
    plan_sweep as plan_sweep,
)
from .sweeping import (
    Sweep as Sweep,
    Tally as Tally,
    Watch as Watch,
    execute as execute,
    gather as gather,
    sweep as sweep,
)
