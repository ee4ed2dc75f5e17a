from .hooks import watched as watched
from .lens import (
    HookedRootModule as HookedRootModule,
    HookPoint as HookPoint,
    fast as fast,
)
from .reading import Hook as Hook, Rows as Rows, reading as reading
from .saving import config_json as config_json, save_checkpoint as save_checkpoint
from .toys import ToyConfig as ToyConfig
from .transformer import (
    Activation as Activation,
    FastTransformer as FastTransformer,
    Normalization as Normalization,
    Positions as Positions,
    SlowForward as SlowForward,
    Transformer as Transformer,
    build_transformer as build_transformer,
    from_config as from_config,
)
from .watching.calling import Forward as Forward
from .watching.watched import Watched as Watched, watch as watch
