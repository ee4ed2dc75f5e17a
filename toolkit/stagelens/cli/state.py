"""What the options before a command set up for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from stagelens.cli import output

if TYPE_CHECKING:
    from stagelens.host import Host


@dataclass
class State:
    plugin_dirs: list[str]
    allowed: list[str] | None = None  # the foreign plugins to load; None: all

    @cached_property
    def host(self) -> Host:
        """The host; plugins that failed are named on stderr, and everything else goes on."""
        from stagelens.host import make_host

        host = make_host(self.plugin_dirs, allow=self.allowed)
        for plugin in host.failed:
            output.warn(f"plugin {plugin.name!r} failed: {plugin.error} ({plugin.file})")
        return host
