"""Verifies claims and writes their verdicts to `verified/`: `make verify` and `make verify-long`.

    python docs/verify.py --budget long markov rich
    python docs/verify.py --budget long --claim S8 --again

Each verdict is written when it is decided, so that this can be interrupted at any time. The same command continues: it
keeps the verdicts in the cache that are still valid. `--again` verifies all chosen claims anew, from cached runs.
"""

from __future__ import annotations

import argparse
import json

import claims_tables
import gallery
import verdicts
from filelock import FileLock

from stagelens.base import write_text
from stagelens.claims import cache_folder, choose, verify
from stagelens.host import Host, make_host

MINUTES = {"quick": 5, "long": 20}  # of one claim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plugins", nargs="*", metavar="PLUGIN")
    parser.add_argument("--claim", action="append", default=[], metavar="ID")
    parser.add_argument("--budget", choices=verdicts.BUDGETS, default="quick")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    host = make_host(allow=())
    chosen = choose(host, given.plugins or list(verdicts.PAPERS), given.claim)
    workers = min(given.workers, len(chosen))
    for result in verify(chosen, host, budget=given.budget, workers=workers, resume=not given.again):
        slow = ": longer than this budget allows" if result.seconds > 60 * MINUTES[given.budget] else ""
        print(f"{result.plugin} {result.id} {result.verdict} ({result.seconds:.0f} s){slow}", flush=True)
        write(host, result.plugin, given.budget, json.loads(json.dumps(result.to_dict())))
    claims_tables.write()
    gallery.write()


def write(host: Host, plugin: str, budget: str, verdict: verdicts.Verdict) -> None:
    """Puts one verdict in place of the last; those of other claims stay. The file has the order of registration."""
    file = verdicts.file_of(plugin, budget)
    file.parent.mkdir(exist_ok=True)
    with FileLock(cache_folder() / f"docs-{plugin}-{budget}.lock"):  # two commands may verify claims of one plugin
        every = verdicts.load(plugin, budget) | {verdict["id"]: verdict}
        order = [id for id, _ in host.claims if id in every]
        write_text(file, json.dumps([every[id] for id in order], indent=2) + "\n")


if __name__ == "__main__":
    main()
