"""The generated pages of the reference. `python docs/reference_pages.py` writes them to `reference/`.

A test fails if a page is stale. The pages about source files come from `reference_source.py`, the public names from
`public_names.py`, and the pages of the JSON schemas from the schemas in `reference/json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import public_names
import reference_source

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/reference_pages.py: do not edit. -->"
ENVIRONMENT = {
    "STAGELENS_RUNS": "the runs directory, if `--runs` is not given; default: `runs`",
    "STAGELENS_CACHE": "where `verify`, `figure` and `check_claim` store runs; default: the user's cache directory",
    "STAGELENS_PLUGINS": "plugins under development, as `--plugin-dir`; several are separated as in `PATH`",
    "STAGELENS_ALLOW": "names of installed plugins that may be imported, separated by commas, as `--allow`",
    "STAGELENS_MEMORY_LIMIT": "MiB by which memory may grow after the first measurement of a run",
    "STAGELENS_TIME_LIMIT": "seconds that one call of a probe or an observer may take",
}
OTHERS = {
    "OMP_NUM_THREADS": "threads of each worker of a sweep; default: cores / workers",
    "WANDB_MODE": "read by the plugin `stagelens_wandb`, which stays offline without it",
    "WANDB_PROJECT": "the project of `stagelens_wandb`; default: `stagelens`",
}
EXIT_CODES = {
    0: "success. `verify` exits with 0 if every claim was judged, also if one differs",
    1: "the command failed: a loss became infinite, a grid point or a claim ended in an error, a plugin's code raised "
    "an exception, or `doctor` found a problem",
    2: "a usage error, reported in one line: an unknown name, a wrong value, a fit that is not possible",
    3: "an environment error, reported in one line: no disk space, no memory, a damaged file, a missing library",
    130: "interrupted with Ctrl-C; the same command resumes, `run` with `--resume`",
}


def commands_page() -> str:
    """Returns the help of every command as typer writes it."""
    import typer.main
    from typer.cli import get_docs_for_click

    from stagelens.cli.main import app

    command = typer.main.get_command(app)
    with command.make_context("stagelens", [], resilient_parsing=True) as context:
        text = get_docs_for_click(obj=command, ctx=context, name="stagelens", title="Commands")
    after = "Exit codes and environment variables: [settings](settings.md). What `--json` prints: [JSON](json.md)."
    return "\n".join([text.strip(), "", after, ""])


def settings_page() -> str:
    """Returns the exit codes, the environment variables, and the default schedules."""
    lines = ["# Exit codes, environment variables, schedules", "", "## Exit codes", ""]
    lines += ["Every command ends with one of these:", "", *_table(["code", "meaning"], _coded(EXIT_CODES)), ""]
    lines += ["## Environment variables", "", *_table(["variable", "meaning"], _coded(ENVIRONMENT)), ""]
    lines += ["Variables of other programs that stagelens reads:", ""]
    return "\n".join([*lines, *_table(["variable", "meaning"], _coded(OTHERS)), "", *_schedules(), ""])


def _coded(rows: dict[Any, str]) -> list[list[str]]:
    return [[f"`{key}`", meaning] for key, meaning in rows.items()]


def _schedules() -> list[str]:
    """Returns when runs are measured and saved: the default, and the tasks that choose otherwise."""
    from stagelens.experiments import CHECKPOINTS, Flow, FlowConfig, Schedule, make_config
    from stagelens.host import make_host

    host, rows = make_host(allow=()), []
    rows += [["measurements", *_schedule(Schedule())], ["checkpoints", *_schedule(CHECKPOINTS)]]
    for name, ref in host.tasks:
        kind = ref.load()
        if not issubclass(kind, Flow):
            schedule = kind(make_config(kind.Config, kind.presets, "quick", ())).schedule()
            rows += [[f"`{name}`", *_schedule(schedule)]] if schedule != Schedule() else []
    points = FlowConfig.model_fields["points"].default
    table = _table(["what", "log", "even", "refine", "sensitivity"], rows)
    return [*SCHEDULES.splitlines(), "", *table, "", f"A flow records `points` times (default {points}){FLOW_TIMES}"]


SCHEDULES = """## Default schedules

`log` steps are evenly spaced in log time and `even` steps evenly spaced. 0 and the last step are always among them. If
the loss is about to change by more than `sensitivity` of its range before the next planned step, the gap is divided
into `refine` parts. A task chooses with `schedule()`: see [set the schedule](../schedule.md)."""
FLOW_TIMES = ": half evenly spaced, half evenly spaced in log time."


def _schedule(schedule: Any) -> list[str]:
    return [f"{getattr(schedule, key):g}" for key in ("log", "even", "refine", "sensitivity")]


def tasks_page() -> str:
    """Returns every task with its config keys, and the names of all that it defines."""
    from stagelens.cli.tasks import LISTS, describe
    from stagelens.host import make_host

    host = make_host(allow=())
    lines = ["# Tasks and their config keys", ""]
    lines += ["`stagelens tasks TASK` prints the same in a terminal. A preset's column has the keys that it sets.", ""]
    for name, _ in host.tasks:
        lines += _task(describe(host, name), LISTS)
    return "\n".join(lines)


def _task(described: dict[str, Any], lists: dict[str, str]) -> list[str]:
    presets = described["presets"]
    rows = []
    for key in described["keys"]:
        cells = [f"`{key['key']}`", key["meaning"], f"{key['type']} {key['bounds']}".strip(), _value(key["default"])]
        rows.append(cells + [_value(key["presets"].get(preset)) for preset in presets])
    lines = [f"## {described['id']}", "", f"{described['title'][:1].upper()}{described['title'][1:]}.", ""]
    lines += [*_table(["config key", "meaning", "type", "default", *presets], rows), ""]
    named = {what: ", ".join(map(str, described[key])) for key, what in lists.items() if described[key]}
    lines += [f"- {what}: {_plain(names)}" for what, names in named.items()]
    lines += [f"- no `{probe}`: {reason}" for probe, reason in described["without"].items()]
    lines += [f"- no predictions: {described['unpredicted']}"] if described["unpredicted"] else []
    return [*lines, ""]


def readings_page() -> str:
    """Returns every probe with each of its readings."""
    from stagelens.cli.probes import describe_probe
    from stagelens.host import make_host

    host = make_host(allow=())
    lines = ["# Readings of the probes", ""]
    lines += [
        "`stagelens probes PROBE` prints the same in a terminal. [Probes](../probes.md) has the definitions. Dims",
        "",
    ]
    lines[-2] += (
        " separated by `|` depend on the task. A chance level that is the name of a reading is recorded with it."
    )
    for name in sorted(dict(host.probes), key=lambda name: host.probes.owners[name] != "probes"):  # built-in ones first
        one = describe_probe(host, name)
        lines += [f"## {name}", "", f"{one['title'][:1].upper()}{one['title'][1:]}. Plugin: {one['plugin']}.", ""]
        lines += [f"- hooks: {', '.join(f'`{hook}`' for hook in one['hooks']) or 'none'}"]
        lines += [f"- passes beyond the shared one: {one['passes']}"]
        lines += [f"- on by default: {'yes' if one['default'] else 'no'}", ""]
        rows = [
            [f"`{r['name'].partition('/')[2]}`", r["meaning"], ", ".join(r["dims"]), r["unit"], r["range"], r["chance"]]
            for r in one["readings"]
        ]
        lines += [*_table(["reading", "meaning", "dims", "unit", "range", "chance level"], rows), ""]
    return "\n".join(lines)


def json_page() -> str:
    """Returns what each command prints with `--json`, from the schemas in `json/`."""
    lines = ["# What --json prints", ""]
    lines += [
        "Each command prints one JSON document on stdout, and nothing else there. The schemas (JSON Schema, draft"
    ]
    lines += ["2020-12) are in `docs/reference/json`. Keys may be added in later versions; none is removed or changes"]
    lines += ["its type without a deprecation. Numbers that JSON lacks (nan, infinity) are `null`.", ""]
    for path in sorted((FOLDER / "json").glob("*.schema.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        lines += [f"## {schema['title']}", "", f"Schema: [`{path.name}`](json/{path.name})", "", "```text"]
        lines += [*_keys(schema), "```", ""]
    return "\n".join(lines)


def _keys(schema: dict[str, Any], indent: str = "") -> Iterable[str]:
    """Yields a line for each key of a schema, indented by its depth."""
    while schema.get("items"):
        schema = schema["items"]
    for key, inner in schema.get("properties", {}).items():
        optional = "" if key in schema.get("required", ()) else " (not always)"
        yield f"{indent}{key}: {_type(inner)}{optional}"
        yield from _keys(inner, indent + "  ")
    if isinstance(schema.get("additionalProperties"), dict):
        yield f"{indent}NAME: {_type(schema['additionalProperties'])}"
        yield from _keys(schema["additionalProperties"], indent + "  ")


def _type(schema: dict[str, Any]) -> str:
    kinds = schema.get("type", "any")
    text = " or ".join(kinds) if isinstance(kinds, list) else kinds
    return f"{text} of {_type(schema['items'])}" if schema.get("items") else text


def _table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [_row(header), _row(["---"] * len(header)), *map(_row, rows)]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    """Returns text in which a star is a star, as in W*: Markdown would take it for emphasis."""
    return text if "`" in text else text.replace("*", "\\*")


def _value(value: Any) -> str:
    from stagelens.experiments import text_of

    return "" if value is None else text_of(value)


PAGES = {
    "commands.md": commands_page,
    "settings.md": settings_page,
    "tasks.md": tasks_page,
    "readings.md": readings_page,
    "json.md": json_page,
    "names.md": public_names.page,
    "context.md": reference_source.context_page,
    "run-directory.md": reference_source.run_directory_page,
}


def written(file: str) -> str:
    """Returns a page as it is written: with a note at its end, because a page's title is its first line."""
    return f"{PAGES[file]().rstrip()}\n\n{NOTE}\n"


if __name__ == "__main__":
    for file in PAGES:
        (FOLDER / file).write_text(written(file), encoding="utf-8")
