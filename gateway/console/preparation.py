"""Compiles what a first visitor would wait for: templates, and routes of the admin API, which FastAPI builds late."""

import asyncio
import logging

from fastapi import FastAPI

from gateway.console.visit import compile_templates

log = logging.getLogger("domicile.gateway")

AFTER_S = 3.0
"""After the start: calls come first."""


class Preparation:
    """Builds the routes of `admin`, the admin API. If the first request built them, every call of the process would
    wait for that."""

    def __init__(self, admin: FastAPI) -> None:
        self._admin = admin

    async def run(self) -> None:
        """Run once, in a thread."""
        await asyncio.sleep(AFTER_S)
        try:
            await asyncio.to_thread(self.prepare)
        except Exception as error:  # of any kind: the first visitor waits, and is told if it fails again
            log.warning("pages are not prepared: %s; the first visit of each takes longer", type(error).__name__)

    def prepare(self) -> None:
        compile_templates()
        for route in self._admin.routes:
            route.matches({"type": "http", "method": "GET", "path": "/no-such-path", "headers": []})
