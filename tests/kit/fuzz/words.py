"""Random command lines: commands and options of the parser, with plausible or hostile values.

A new command or option is tried without an edit here; one whose values have a meaning can be given plausible ones in
`Words.meant`.
"""

from __future__ import annotations

import importlib
import random
from functools import cache
from typing import Any

import typer

from stagelens.host.host import Host, make_host

NUMBERS = ["0", "1", "2", "3", "5", "0.5", "1e-3", "-1", "-0", "1.5", "+2", "007", "1_0", "٣"]
HUGE = ["1e9", "1000000000", "1e12", "9223372036854775807", "9223372036854775808", "1e30", "9" * 30, "1e308", "-1e308"]
ODD_NUMBERS = [
    "nan",
    "inf",
    "-inf",
    "Infinity",
    "NaN",
    "1e999",
    "1e-320",
    "0x10",
    "1e",
    "--1",
    "1,2",
    "1/2",
    "9" * 5000,
]
TEXTS = [
    *(
        "",
        " ",
        "-",
        "--",
        "=",
        ",",
        ":",
        ";",
        "..",
        "/",
        "\\",
        "%s%n%d",
        "{0}",
        "{name}",
        "$(true)",
        "';--",
        "<b>&amp;",
    ),
    *(
        "null",
        "true",
        "None",
        "[]",
        "{}",
        '""',
        "[1,[2",
        '{"a": 1}',
        "[" * 3000,
        '{"a":' * 3000,
        "a" * 300,
        "x" * 100_000,
    ),
    *("é", "漢字", "🙂", "\u202eabc", "e\u0301" * 200, "\udcff\udcfe", "ß" * 150),
    *("\n", "a\nb", "\t", "\r", "\x1b[31mred\x1b[0m", "\x07", "\x7f", "\x85", "a\x0bb", "\x1c"),
]
PATHS = [
    *(
        ".",
        "..",
        "/",
        "/dev/null",
        "/dev/full",
        "/dev/null/x",
        "/proc/self/mem",
        "/nowhere/at/all",
        "~",
        "~nobody",
        "a/../b",
    ),
    *(
        "folder",
        "file",
        "unreadable",
        "link-to-itself",
        "n" * 300,
        "folder/" * 600,
        "with space",
        "\n",
        "--",
        "x" * 5000,
    ),
]
LONG_WORK = ("steps", "first_steps", "time")  # keys whose large values are valid, and only take long
OURS = {"verify": "claims_plugin", "sweep": "sweep_plugin"}  # plugins of the tests, for commands that need one of them
STOPS = {
    "run": ("--name", "a/b"),
    "sweep": ("--fit", "nothing"),
    "probe": ("--probes", "nope"),
    "verify": ("--claim", "M99"),
}
SMALL = {"steps": "2", "first_steps": "1", "points": "8", "batch_size": "4", "eval_size": "4"}


@cache
def tree() -> Any:
    """The command line's tree, with every command in it."""
    return typer.main.get_command(importlib.import_module("stagelens.cli.main").app)


@cache
def host() -> Host:
    return make_host()


@cache
def config_of(task: str) -> Any:
    return host().task(task).load().Config


def keys_of(config: Any, prefix: str = "") -> list[str]:
    """The keys of a config as `--set` takes them, nested ones with dots."""
    keys = []
    for name, field in config.model_fields.items():
        nested = getattr(field.annotation, "model_fields", None)
        keys += keys_of(field.annotation, f"{prefix}{name}.") if nested else [f"{prefix}{name}"]
    return keys


class Words:
    """One command line after another, each a function of (seed, number). The files that it names are the world's."""

    def __init__(self, seed: int, number: int, works: bool = True) -> None:
        self.rng = random.Random(f"{seed} {number}")
        self.works = works  # otherwise a mistake is added at the end, so that no real work starts
        self.hostility = self.rng.choice([0.0, 0.05, 0.05, 0.3])  # fraction of the values that make no sense
        self.task = "emergence/flow"

    def line(self) -> list[str]:
        """The words after `stagelens`."""
        rng, commands = self.rng, tree().commands
        if rng.random() < 0.02:
            return self.before() + [self.hostile() for _ in range(rng.randint(0, 3))]
        weights = {"run": 8, "sweep": 8, "stages": 6, "compare": 3, "report": 2, "verify": 3, "probe": 4, "doctor": 0.3}
        name = rng.choices(list(commands), [weights.get(name, 1) for name in commands])[0]
        self.task = rng.choice([ref for ref, _ in host().tasks])
        words: list[str] = []
        for parameter in commands[name].params:
            words += self.given(name, parameter)
        if rng.random() < 0.1 * self.hostility:
            words.insert(rng.randint(0, len(words)), self.hostile())
        words = self.tamed(name, words)
        plugin = ["--plugin-dir", f"{OURS[name]}.py"] if name in OURS and rng.random() < 0.5 else self.before()
        return [*plugin, name, *words]

    def before(self) -> list[str]:
        """Returns options that come before the command."""
        rng = self.rng
        if rng.random() < 0.93:
            return []
        if rng.random() < 0.1:
            return [rng.choice(["--version", "--help", "-h", "--bogus", "--show-completion", "-"])]
        return ["--plugin-dir", rng.choice(["plugins/raises.py", "plugins/syntax.py", "plugins", *PATHS, *TEXTS])]

    def given(self, command: str, parameter: Any) -> list[str]:
        """The words for one parameter: none, one or several; an option with its name before each value."""
        rng = self.rng
        argument = parameter.param_type_name == "argument"
        if argument:
            count = rng.choice([1, 1, 1, 2, 3]) if parameter.nargs == -1 else 1
            count = 0 if rng.random() < 0.1 * self.hostility else count
            return [self.value(command, parameter) for _ in range(count)]
        if parameter.is_flag:
            names = [*parameter.opts, *parameter.secondary_opts]
            return [rng.choice(names)] if rng.random() < 0.25 else []
        if rng.random() > (0.6 if parameter.multiple else 0.25):
            return []
        count = rng.choice([1, 1, 2, 3]) if parameter.multiple else 1
        words = [word for _ in range(count) for word in (rng.choice(parameter.opts), self.value(command, parameter))]
        return words[:-1] if rng.random() < 0.01 else words

    def value(self, command: str, parameter: Any) -> str:
        rng = self.rng
        if rng.random() < self.hostility:
            return self.hostile(str(parameter.type_descriptor.annotation))
        meant = self.meant(command, parameter.name)
        return rng.choice(meant) if meant else self.hostile(str(parameter.type_descriptor.annotation))

    def hostile(self, annotation: str = "") -> str:
        rng = self.rng
        pools = [TEXTS, PATHS, ODD_NUMBERS, NUMBERS, HUGE]
        if "int" in annotation:
            pools = [NUMBERS, HUGE, ODD_NUMBERS, TEXTS]
        if "Path" in annotation:
            pools = [PATHS, PATHS, TEXTS]
        if rng.random() < 0.1:
            return "".join(
                chr(rng.choice([rng.randint(1, 127), rng.randint(128, 0xD7FF)])) for _ in range(rng.randint(1, 20))
            )
        return rng.choice(rng.choice(pools))

    def meant(self, command: str, name: str) -> list[str]:
        """Values that make sense for a parameter; an empty list where none are known."""
        ours = ["done", "flow", "done", "flow", "runs/done", "cut", "nothing"]
        if name == "task":
            return [self.task] * 30 + [self.task.partition("/")[0], "power", "power/law", "markow"]
        if name == "set_":
            return [self.setting()]
        if name == "grid":
            return [self.grid()]
        if name in ("run", "runs"):
            return (
                ours
                if command in ("show", "export", "compare", "report") and name == "run"
                else ["runs", "new", "folder"]
            )
        known: dict[str, list[str]] = {
            "preset": ["quick", "quick", "quick", "quick", "paper", "quik"],
            "device": ["cpu", "cpu", "cpu", "auto", "meta", "cuda", "cuda:99", "mps", "xla", "cpu:0", "cpu:7"],
            "probes": [
                "weight_norms",
                "attention_sparsity",
                "weight_norms,conserved",
                "induction",
                ",",
                "weight_norms,weight_norms",
                "nope",
            ],
            "probe": ["loss", "weight_norms", "weight_norms/norm", "loss[head=1]", "nothing"],
            "metric": ["loss", "value", "step", "weight_norms/norm", "train_loss"],
            "curve": [*ours, *(f"{n}.csv" for n in ("curve", "wide", "made"))] + ["made.csv"] * 12,
            "align": ["step", "fraction", "loss", "stage", "time"],
            "format": ["csv", "parquet", "netcdf", "xlsx"],
            "to": [f"out.{ending}" for ending in ("png", "svg", "html", "csv", "json", "pdf", "exe", "parquet", "nc")]
            + ["folder/x.png"],
            "checkpoints": [
                "checkpoints",
                "checkpoints/1.safetensors",
                "checkpoints/2.safetensors",
                "folder",
                "file",
                "curve.csv",
            ],
            "batch": ["tokens.safetensors", "checkpoints/1.safetensors", "file"],
            "seed": ["0", "1", "7", "12345678901234567890"],
            "seeds": ["1", "1", "1", "2"],
            "workers": ["1", "2", "1000000"],
            "every": ["1", "2", "1" * 20],
            "first": ["0", "1", "2", "5"],
            "last": ["0", "1", "2", "5"],
            "name": ["mine", "mine", "ok-name", "done", "a/b"]
            if command != "new-plugin"
            else ["my-paper", "markov", "My"],
            "into": ["folder", "new", "file"],
            "measure": [self.measure()],
            "fit": ["T", "d", "T,d", "T*sqrt(d)", "steps", "label", "lr,lr", ","],
            "executor": ["local", "slurm"],
            "address": ["auto", "nowhere:1"],
            "results": ["shared", "returned", "lost"],
            "plugins": ["lines", "nothing"],
            "claim": ["T1", "T2", "T3", "T4", "T5", "T6", "T7", "M99"],
            "budget": ["quick", "long", "paper", "huge"],
            "cache": ["cache", "folder", "file"],
        }
        return known.get(name, [])

    def setting(self) -> str:
        rng = self.rng
        key = rng.choice(keys_of(config_of(self.task)))
        if rng.random() < 0.1:
            return rng.choice(
                [key, f"{key}.deep=1", f"={key}", f" {key}=1", f"{key}==1", f"{key.upper()}x=2", *TEXTS[:20]]
            )
        return f"{key}={self.config_value(key)}"

    def config_value(self, key: str) -> str:
        """A value for a config key, of its own kind or of another."""
        rng = self.rng
        lists = [
            "[]",
            "[1]",
            "1,2",
            "[[1,2],[3]]",
            "[[1],[2],[3,4]]",
            "0.1,0.2,0.3",
            "[null]",
            "[[1,2],[2,1]]",
            "power:1",
        ]
        words = [
            "true",
            "false",
            "null",
            "adam",
            "sgd",
            "query",
            "gaussian",
            "full",
            "none",
            "plateau",
            "LSODA",
            "Radau",
        ]
        pools = [NUMBERS, NUMBERS, ODD_NUMBERS, lists, words, TEXTS]
        pools += [] if key.rpartition(".")[2] in LONG_WORK else [HUGE, HUGE]
        return rng.choice(rng.choice(pools))

    def grid(self) -> str:
        """A grid in any of its forms, whole or broken."""
        rng = self.rng
        keys = keys_of(config_of(self.task))
        key, other = rng.choice(keys), rng.choice(keys)
        n = [rng.choice([*NUMBERS, *HUGE, *ODD_NUMBERS[:8]]) for _ in range(6)]
        small = [str(rng.randint(1, 9)) for _ in range(4)]
        return rng.choice(
            [
                f"{key}={small[0]},{small[1]}",
                f"{key}={n[0]},{n[1]}",
                f"{key}={n[0]}:{n[1]}:{n[2]}",
                f"{key}={small[0]}:{n[1]}:{n[2]}",
                f"{key}=log:{n[0]}:{n[1]}:{n[2]}",
                f"{key}=log:{small[0]}:{n[1]}:{small[2]}",
                f"{key},{other}={n[0]}:{n[1]},{n[2]}:{n[3]}",
                f"{key},{other}={n[0]}:{n[1]}:{n[2]}",
                f"{key}=[{n[0]},[{n[1]}",
                f"{key}={self.config_value(key)}",
                f"{key}=",
                f"seed={n[0]}",
                "made.yaml",
                "made.yaml",
                "made.yml",
                "good.yaml",
                "folder",
                "missing.yaml",
            ]
        )

    def measure(self) -> str:
        rng = self.rng
        names = [
            "loss",
            "train_loss",
            "weight_norms/norm",
            "nothing",
            "plateau_length",
            "transition1",
            "transition0",
            "stages",
        ]
        ends = [
            "",
            ":final",
            ":best",
            ":stage1",
            ":stage99",
            ":worst",
            "@0.1",
            "@50%",
            "@nan",
            "@x",
            "[head=1]",
            "[",
            "@",
        ]
        return rng.choice(names) + rng.choice(ends) + rng.choice(["", "", ":final", "@1e999%"])

    def tamed(self, command: str, words: list[str]) -> list[str]:
        """Returns `words` changed to end soon: few steps, only the tests' own claims, mostly dry runs of sweeps."""
        rng = self.rng
        if command in ("run", "sweep"):
            fields = config_of(self.task).model_fields
            own = {word.partition("=")[0] for word in words}
            small = {key: value for key, value in SMALL.items() if key in fields and key not in own}
            if "time" in fields and "time" not in own:
                small["time"] = "3"
            words += [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
            words = [word for word in words if word != "--compile"]
        if command == "sweep" and rng.random() < 0.98:
            words.append("--dry-run")
        if command == "verify" and not any(word in ("lines", "power") or word[:1] in ("T", "M") for word in words):
            words += ["--claim", rng.choice(["T1", "T4", "T6", "M99"])]
        return words if self.works else [*words, *STOPS.get(command, ())]
