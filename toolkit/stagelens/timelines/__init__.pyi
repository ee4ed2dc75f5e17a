from .crossings import first_crossing as first_crossing
from .csv_curve import read_curve as read_curve
from .curves import (
    SeriesCurve as SeriesCurve,
    average as average,
    chance_levels as chance_levels,
    curves_of as curves_of,
    lines_of as lines_of,
    one_curve as one_curve,
    parse_curve as parse_curve,
    parse_place as parse_place,
    places as places,
)
from .events import half_rise as half_rise, probe_events as probe_events
from .exporting import export as export
from .fits import LineFit as LineFit, line_fit as line_fit, local_slope as local_slope
from .reading import CHANCE as CHANCE, Reading as Reading, is_companion as is_companion
from .timeline import (
    LARGEST_STEP as LARGEST_STEP,
    Column as Column,
    Layout as Layout,
    Measurement as Measurement,
    Timeline as Timeline,
    check_same as check_same,
    column_of as column_of,
    layout_from_json as layout_from_json,
    layout_to_json as layout_to_json,
    pack as pack,
    placed as placed,
    plain_step as plain_step,
)
