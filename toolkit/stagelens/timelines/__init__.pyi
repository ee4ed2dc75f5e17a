from .crossings import first_crossing as first_crossing
from .csv_curve import read_curve as read_curve
from .curves import (
    Lines as Lines,
    SeriesCurve as SeriesCurve,
    average as average,
    chance_levels as chance_levels,
    curve_name as curve_name,
    curves_of as curves_of,
    element_names as element_names,
    lines_of as lines_of,
    one_curve as one_curve,
    parse_place as parse_place,
    places as places,
)
from .events import half_rise as half_rise, probe_events as probe_events
from .exporting import export as export
from .fits import LineFit as LineFit, line_fit as line_fit, local_slope as local_slope
from .formed import Formation as Formation, what_formed as what_formed
from .headlines import (
    HEADLINES as HEADLINES,
    NO_GROUP as NO_GROUP,
    Headline as Headline,
    HeadLines as HeadLines,
    companion as companion,
    head_lines as head_lines,
    lines_named as lines_named,
)
from .labels import label_spans as label_spans, phases_of as phases_of, settled as settled
from .nearest import Nearest as Nearest, nearest_reference as nearest_reference, nearest_spans as nearest_spans
from .reading import (
    CHANCE as CHANCE,
    ERROR as ERROR,
    Reading as Reading,
    ReadingInfo as ReadingInfo,
    described_reading as described_reading,
    is_companion as is_companion,
)
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
