from .discovery import ALLOW as ALLOW, PLACES as PLACES
from .host import Host as Host, make_host as make_host
from .references import (
    ClaimRef as ClaimRef,
    FigureRef as FigureRef,
    ProbeRef as ProbeRef,
    TaskRef as TaskRef,
    importing as importing,
)
from .registration import Registration as Registration
