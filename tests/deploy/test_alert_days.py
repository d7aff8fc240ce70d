"""The alert on the first token, over the afternoon of a day of `bench/results/fleet-day-2026-11-28.json`, by its seed.

What a gateway counts then is replayed, minute by minute, through promtool: an afternoon on which clients go over from
streams to whole answers is quiet, one on which the engine becomes slow is not. Whole answers take seconds; if they
counted as first tokens, the same quiet afternoon would raise the alert.
"""

import bisect
import json
import random
import re
import shutil
from functools import cache
from pathlib import Path

import yaml

from bench.fleet.day import SimulatedReplica, arrivals
from gateway.request.telemetry import SECONDS
from tests.deploy.test_files import DEPLOY, run
from tests.fakes.needs import missing

RECORDED = json.loads((Path(__file__).parents[2] / "bench/results/fleet-day-2026-11-28.json").read_text())
SEED = RECORDED["days"][0]["seed"]
FROM, UNTIL = 13 * 60, 17 * 60
CHANGES = 15 * 60 + 35
"""Minute of the day at which something changes: for half an hour from then it is as busy as an hour before."""
LABELS = 'tenant="acme",gen_ai_request_model="m"'
FIRST = "gen_ai_server_time_to_first_token_seconds"


@cache
def day():
    return arrivals(SEED, RECORDED["peak"], RECORDED["floor"])


def counted(*, whole_later, slower=1.0, whole_counts=False):
    """What comes to a gateway's counters in each minute: requests, and first tokens in each bucket."""
    chance, replica, minutes = random.Random(SEED), SimulatedReplica(0.0, 0.0), UNTIL - FROM
    requests, buckets = [0] * minutes, [[0] * minutes for _ in (*SECONDS, None)]
    for at, tokens in day():
        minute = int(at // 60) - FROM
        if not 0 <= minute < minutes:
            continue
        later = minute + FROM >= CHANGES
        replica.running = chance.randrange(8)
        first, end = replica.serve(0.0, tokens)
        requests[minute] += 1
        whole = chance.random() < (whole_later if later else 0.03)
        if whole and not whole_counts:
            continue
        taken = end if whole else first * (slower if later else 1.0)
        buckets[bisect.bisect_left(SECONDS, taken)][minute] += 1
    return requests, buckets


def series(requests, buckets):
    bounds = [*(f"{bound:g}" for bound in SECONDS), "+Inf"]
    below, found = [0] * len(requests), []
    for bound, made in zip(bounds, buckets, strict=True):
        below = [a + b for a, b in zip(below, made, strict=True)]
        found.append({"series": f'{FIRST}_bucket{{{LABELS},le="{bound}"}}', "values": totals(below)})
    shown = f'domicile_requests_total{{{LABELS},http_response_status_code="200"}}'
    return [*found, {"series": shown, "values": totals(requests)}]


def totals(each_minute):
    total, told = 0, ["0"]
    for made in each_minute:
        total += made
        told.append(str(total))
    return " ".join(told)


def standing(folder, counts):
    """The minutes of the day, of every fifth, at which FirstTokenSlower stands."""
    if not shutil.which("promtool"):
        missing("no promtool: install Debian's prometheus, which `.ci/run` does")
    asked = range(75, UNTIL - FROM, 5)  # the alert compares with an hour before
    checks = [{"eval_time": f"{minute}m", "alertname": "FirstTokenSlower", "exp_alerts": []} for minute in asked]
    test = {"name": "a day", "interval": "1m", "input_series": series(*counts), "alert_rule_test": checks}
    file = folder / "day.yaml"
    rules = str(DEPLOY / "prometheus" / "rules.yaml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "evaluation_interval": "1m", "tests": [test]}))
    said = run("promtool", "test", "rules", str(file), cwd=folder)
    text = said.stdout + said.stderr
    found = {FROM + minute for minute in asked if re.search(rf"time: {shown(minute)},", text)}
    assert (said.returncode == 0) == (not found), text[:2000]
    return found


def shown(minutes):
    """As promtool writes a time: ``1h15m``, ``2h``."""
    hours, rest = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{rest}m" if rest else "")


def test_an_afternoon_on_which_clients_go_over_to_whole_answers_is_quiet(tmp_path):
    assert standing(tmp_path, counted(whole_later=0.6)) == set()


def test_an_afternoon_on_which_the_engine_becomes_slow_is_told(tmp_path):
    found = standing(tmp_path, counted(whole_later=0.03, slower=4.0))
    assert found and min(found) > CHANGES


def test_the_same_quiet_afternoon_would_be_told_if_whole_answers_counted(tmp_path):
    assert standing(tmp_path, counted(whole_later=0.6, whole_counts=True))
