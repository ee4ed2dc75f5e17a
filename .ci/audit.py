"""`make audit`: compares the pinned versions with the advisories of PyPI or OSV, if one of them can be reached.

pip-audit also succeeds if a mirror answers every query with "not found"; here that counts as not reached.
"""

from __future__ import annotations

import json
import subprocess  # nosec B404  # pip-audit of this Python environment
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parent.parent
SERVICES = ("pypi", "osv")
KNOWN = "jinja2==3.1.5"  # a version that has advisories: a service that knows of none is not usable


def ask(service: str, pins: list[str]) -> list[dict[str, Any]]:
    """Returns the answers of `service` about the `pins` that it knows; an empty list if it cannot be reached."""
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json", "--timeout", "10"]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "pins.txt"
        file.write_text("\n".join(pins), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "-r", str(file), "-s", service, *options]
        done = subprocess.run(command, capture_output=True, text=True)  # nosec B603  # no shell
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):  # it could not reach the service, and printed a traceback
        return []
    return [answer for answer in answers if "vulns" in answer]


def main() -> int:
    pins = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line]
    for service in SERVICES:
        if not (any(answer["vulns"] for answer in ask(service, [KNOWN])) and (known := ask(service, pins))):
            continue
        open_ = [(answer, vuln) for answer in known for vuln in answer["vulns"]]
        for answer, vuln in open_:
            fixed = ", ".join(vuln["fix_versions"]) or "no version yet"
            sys.stdout.write(f"{answer['name']} {answer['version']}: {vuln['id']}, fixed in {fixed}\n")
        sys.stdout.write(f"audit: {service} knows {len(known)} of {len(pins)} pins, {len(open_)} advisories\n")
        return 1 if open_ else 0
    sys.stdout.write(f"audit: SKIPPED, because neither of {', '.join(SERVICES)} can be reached here\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
