from .claim import (
    BUDGETS as BUDGETS,
    NOT_REACHED as NOT_REACHED,
    REPORTED as REPORTED,
    VERDICTS as VERDICTS,
    Check as Check,
    Claim as Claim,
    NoMeasurement as NoMeasurement,
    Result as Result,
    Value as Value,
    at_least as at_least,
    at_most as at_most,
    close as close,
    equal as equal,
    in_every_seed as in_every_seed,
    ordered as ordered,
    per_seed as per_seed,
    reached as reached,
    reported as reported,
)
from .figures import ChosenFigure as ChosenFigure, choose_figures as choose_figures, draw_figure as draw_figure
from .lab import Lab as Lab, Watch as Watch, cache_folder as cache_folder
from .verifying import (
    Chosen as Chosen,
    choose as choose,
    last_results as last_results,
    verify as verify,
    verify_claim as verify_claim,
)
