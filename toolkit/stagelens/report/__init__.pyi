from .comparison import (
    Comparison as Comparison,
    check_axes as check_axes,
    check_suffix as check_suffix,
    compare as compare,
)
from .pages import (
    comparison_page as comparison_page,
    write_comparison as write_comparison,
    write_report as write_report,
)
