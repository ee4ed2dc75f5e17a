"""The gallery: every registered figure of the papers, what the paper's own shows, and the verdicts that belong to it.

    python docs/gallery.py                    # draws the figures that are missing
    python docs/gallery.py --again markov     # draws all of one plugin anew

The figures come from the runs that `stagelens verify` caches; runs that are missing are trained. The page
`gallery.md` is written anew each time, and by `docs/verify.py`; `--page` writes nothing else. A test fails if it is
stale.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import verdicts

from stagelens.base import EnvironmentFault
from stagelens.claims import ChosenFigure, Lab, cache_folder, choose_figures, draw_figure
from stagelens.figures import save
from stagelens.host import make_host

PAGE = Path(__file__).parent / "gallery.md"
IMAGES = Path(__file__).parent / "images" / "gallery"
NOTE = "<!-- Written by docs/gallery.py: do not edit. -->"


def image(one: ChosenFigure) -> Path:
    return IMAGES / f"{one.plugin}-{one.ref.name}.png"


def page() -> str:
    """Returns the page: one section for each paper, one part for each figure."""
    host = make_host(allow=())
    lines = [
        NOTE,
        "",
        "# Gallery",
        "",
        "The papers' figures as stagelens draws them. `stagelens figure PLUGIN FIGURE` draws one.",
        "`--budget long` draws it from larger runs.",
        "",
    ]
    for plugin in verdicts.PAPERS:
        lines += [f"## {plugin}", ""]
        for one in choose_figures(host, plugin):
            lines += [*_part(one), ""]
    return "\n".join(lines)


def _part(one: ChosenFigure) -> list[str]:
    file = image(one)
    shown = f"![{one.ref.title}](images/gallery/{file.name})" if file.exists() else "Not drawn yet."
    lines = [f"### {one.plugin} {one.ref.name}: {one.ref.title}", "", shown, ""]
    if one.ref.paper:
        lines += [f"**The paper's figure.** {one.ref.paper}", ""]
    if one.ref.claims:
        lines += [verdicts.row(["claim", *verdicts.BUDGETS]), verdicts.row(["---"] * (1 + len(verdicts.BUDGETS)))]
        lines += [_verdicts(one.plugin, claim) for claim in one.ref.claims]
        lines.append("")
    return [*lines, f"`stagelens figure {one.plugin} {one.ref.name}`"]


def _verdicts(plugin: str, claim: str) -> str:
    found = [verdicts.load(plugin, budget).get(claim) for budget in verdicts.BUDGETS]
    title = next((one["title"] for one in found if one), "")
    return verdicts.row([f"{claim} {title}".strip(), *(one["verdict"] if one else "" for one in found)])


def write() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plugins", nargs="*", metavar="PLUGIN")
    parser.add_argument("--figure", action="append", default=[], metavar="NAME")
    parser.add_argument("--budget", choices=verdicts.BUDGETS, default="quick")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if not given.page:
        draw(given)
    write()


def draw(given: argparse.Namespace) -> None:
    """Draws the chosen figures that have no image yet."""
    host = make_host(allow=())
    IMAGES.mkdir(parents=True, exist_ok=True)
    lab = Lab(host, cache_folder(), given.budget)
    for plugin in given.plugins or verdicts.PAPERS:
        for one in choose_figures(host, plugin, given.figure):
            if given.again or not image(one).exists():
                try:
                    drawn = draw_figure(one.ref, lab)
                except EnvironmentFault as fault:  # such as a corpus that needs a network
                    print(f"{image(one).name} is not drawn: {fault}", flush=True)
                    continue
                if drawn is not None:
                    save(drawn, image(one))
                    print(image(one).name, flush=True)


if __name__ == "__main__":
    main()
