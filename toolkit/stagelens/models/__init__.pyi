from .covered import watched as watched
from .toys import ToyConfig as ToyConfig
from .transformer import (
    Activation as Activation,
    FastTransformer as FastTransformer,
    Normalization as Normalization,
    Positions as Positions,
    SlowForward as SlowForward,
    Transformer as Transformer,
    build_transformer as build_transformer,
    fast as fast,
    from_config as from_config,
)
from .watching.calling import Forward as Forward
from .watching.watched import Watched as Watched, watch as watch
