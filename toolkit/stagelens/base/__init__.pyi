from .device import resolve_device as resolve_device
from .documents import (
    load_sealed as load_sealed,
    parse_json as parse_json,
    read_text as read_text,
    read_yaml as read_yaml,
    save_sealed as save_sealed,
)
from .errors import (
    EnvironmentFault as EnvironmentFault,
    StagelensError as StagelensError,
    UsageError as UsageError,
    unknown as unknown,
)
from .files import make_folder as make_folder, safe_name as safe_name, write_text as write_text, writing as writing
from .memory import free_memory as free_memory, within_memory as within_memory
from .naming import content_name as content_name, digest as digest
from .plain import json_text as json_text, plain as plain
from .problems import noting as noting, place_in as place_in
from .processes import (
    cores as cores,
    environment as environment,
    gpus_in_turn as gpus_in_turn,
    threads_each as threads_each,
    wants_gpu as wants_gpu,
    worker_environment as worker_environment,
)
from .safe_paths import check_own as check_own, leads_into as leads_into, own as own
from .seeds import (
    derive as derive,
    generator as generator,
    seed_everywhere as seed_everywhere,
    untouched_rng as untouched_rng,
)
