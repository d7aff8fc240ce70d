"""What a first visitor would wait for is compiled before."""

import asyncio

from fastapi import routing
from jinja2 import Environment

from gateway.admin.app import build_admin
from gateway.admin.calls.access import AdminContext
from gateway.console import preparation, visit
from gateway.console.preparation import Preparation


def admin():
    nothing = dict.fromkeys(("database", "hasher", "check_policy", "on_event"))
    return build_admin(AdminContext(cell="eu-1", **nothing))


def counted(monkeypatch, owner, name):
    done = []
    real = getattr(owner, name)

    def count(*given, **named):
        done.append(name)
        return real(*given, **named)

    monkeypatch.setattr(owner, name, count)
    return done


def test_templates_are_compiled_and_routes_built_once(monkeypatch):
    monkeypatch.setattr(visit, "_PAGES", visit._PAGES.overlay(cache_size=400))
    compiled = counted(monkeypatch, Environment, "compile")
    built = counted(monkeypatch, routing._EffectiveRouteContext, "from_api_route")
    app = admin()
    assert not built, "FastAPI builds routes early now: this preparation can go"
    Preparation(app).prepare()
    assert len(compiled) > 30 and len(built) > 100
    compiled.clear(), built.clear()
    Preparation(app).prepare()
    assert compiled == built == []


async def test_a_preparation_that_fails_is_told_and_ends(monkeypatch, caplog):
    def fails():
        raise OSError("gone")

    monkeypatch.setattr(preparation, "AFTER_S", 0)
    monkeypatch.setattr(preparation, "compile_templates", fails)
    await asyncio.wait_for(Preparation(admin()).run(), 30)
    assert "pages are not prepared: OSError" in caplog.text
