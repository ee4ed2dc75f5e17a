from .attention import (
    attention_figure as attention_figure,
    attention_maps as attention_maps,
    chosen_steps as chosen_steps,
    composite as composite,
)
from .comparison import comparison_figure as comparison_figure
from .drawing import (
    draw_levels as draw_levels,
    draw_predictions as draw_predictions,
    draw_series as draw_series,
    levels_of as levels_of,
    predictions_of as predictions_of,
    shade_stages as shade_stages,
    theory_curve as theory_curve,
    theory_label as theory_label,
    title_of as title_of,
    x_label as x_label,
)
from .labels import legend_beside as legend_beside, legend_row as legend_row, name_beside as name_beside
from .overview import overview_figure as overview_figure
from .palette import COLOURS as COLOURS, DASHES as DASHES
from .probes import probes_figure as probes_figure
from .style import (
    LEVEL as LEVEL,
    THEORY as THEORY,
    TIME as TIME,
    grid as grid,
    headline as headline,
    line_style as line_style,
    make_room as make_room,
    panels as panels,
    save as save,
    styled as styled,
)
from .sweeps import write_sweep_figures as write_sweep_figures
from .timelines import (
    loss_figure as loss_figure,
    specialization_figure as specialization_figure,
)
from .writing import FOLDER as FOLDER, figures_of as figures_of, write_figures as write_figures
