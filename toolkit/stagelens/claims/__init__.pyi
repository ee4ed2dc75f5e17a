from .checks import (
    NOT_REACHED as NOT_REACHED,
    REPORTED as REPORTED,
    Check as Check,
    NoMeasurement as NoMeasurement,
    Value as Value,
    at_least as at_least,
    at_most as at_most,
    close as close,
    equal as equal,
    in_every_seed as in_every_seed,
    on_average as on_average,
    ordered as ordered,
    per_seed as per_seed,
    reached as reached,
    reported as reported,
    seed_mean as seed_mean,
)
from .claim import BUDGETS as BUDGETS, REASONS as REASONS, VERDICTS as VERDICTS, Claim as Claim, Result as Result
from .figures import ChosenFigure as ChosenFigure, choose_figures as choose_figures, draw_figure as draw_figure
from .lab import Lab as Lab, Watch as Watch, cache_folder as cache_folder
from .verdicts import last_results as last_results
from .verifying import (
    Chosen as Chosen,
    choose as choose,
    verify as verify,
    verify_claim as verify_claim,
)
