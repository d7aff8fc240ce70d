"""Buckets in Redis or Valkey, for limits that hold across gateways and outlive each of them.

The arithmetic is that of `gateway.quotas`, as Lua scripts, which Redis runs one at a time: so parallel reservations
anywhere are in a row. The clock is Redis's own, one for all gateways. A tenant's keys are in one slot of a cluster.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.errors import LimitsUnavailable
from gateway.limits import LEASE_S, Cost, Counter, LimitExceeded, Reservation
from gateway.quotas import RETRY_CONCURRENT_S, Budget, Quota, Rate

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
KEEP_S = 40 * 86400  # beyond a month, so that no budget is forgotten within its own

# KEYS: for each counter its bucket (hash: level, held, at) and its holds (sorted set: "<reservation> <amount>" by the
# deadline of the lease). ARGV: now ('' for the server's clock), reservation, lease, seconds to keep; then what each
# script says. A number leaves as a string: Redis makes integers of Lua's.
_COMMON = """
local function clock()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1e6
end
local now = clock()
local function number(x) return string.format('%.17g', x) end
local function month_begin(at) -- days since 1970 to year, month and day, after H. Hinnant's days_from_civil
  local days = math.floor(at / 86400)
  local z = days + 719468
  local doe = z % 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  return (days - (doy - math.floor((153 * mp + 2) / 5))) * 86400
end
local function span(kind)
  if kind == 'day' then local from = now - now % 86400; return from, from + 86400 end
  local from = month_begin(now)
  return from, month_begin(from + 32 * 86400)
end
local function open(i, kind, drain)
  local got = redis.call('HMGET', KEYS[i], 'level', 'held', 'at')
  local b = {key = KEYS[i], holds = KEYS[i + 1], level = tonumber(got[1] or 0), held = tonumber(got[2] or 0)}
  b.at = tonumber(got[3] or now)
  if now > b.at then
    if kind == 'rate' then b.level = math.max(0, b.level - (now - b.at) * drain)
    elseif kind == 'concurrent' then b.level = 0
    elseif b.at < span(kind) then b.level = 0 end
    b.at = now
  end
  return b
end
local function release(b, member)
  if redis.call('ZREM', b.holds, member) == 0 then return false end
  b.held = math.max(0, b.held - tonumber(string.match(member, ' (%S+)$')))
  return true
end
local function store(b)
  redis.call('HSET', b.key, 'level', number(b.level), 'held', number(b.held), 'at', number(b.at))
  redis.call('EXPIRE', b.key, ARGV[4])
  redis.call('EXPIRE', b.holds, ARGV[4])
end
"""

# Then for each counter: kind, drain a second, capacity, spend, hold ('' for none).
# Returns {0, now, used...}, or {1, which, wait, used...}; which from 0, wait -1 where it never fits.
_TAKE = (
    _COMMON
    + """
local count = (#ARGV - 4) / 5
local buckets, used, never, worst, which = {}, {}, nil, nil, nil
for n = 1, count do
  local a = 5 * n
  local kind, drain, capacity = ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local asked = tonumber(ARGV[a + 3]) + tonumber(ARGV[a + 4] ~= '' and ARGV[a + 4] or 0)
  local b = open(2 * n - 1, kind, drain)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', b.holds, '-inf', now, 'LIMIT', 0, 1000)) do release(b, member) end
  store(b)
  buckets[n], used[n] = b, number(b.level + b.held)
  local excess = b.level + b.held + asked - capacity
  if asked > capacity then never = never or n end
  if excess > capacity * 1e-9 then
    local wait = tonumber('RETRY')
    if kind == 'rate' then wait = drain > 0 and excess / drain or math.huge
    elseif kind ~= 'concurrent' then local _, ends = span(kind); wait = ends - now end
    if not worst or wait > worst then worst, which = wait, n end
  end
end
if never then return {1, never - 1, '-1', unpack(used)} end
if worst then return {1, which - 1, number(worst), unpack(used)} end
for n = 1, count do
  local b, a = buckets[n], 5 * n
  b.level = b.level + tonumber(ARGV[a + 3])
  if ARGV[a + 4] ~= '' then
    b.held = b.held + tonumber(ARGV[a + 4])
    redis.call('ZADD', b.holds, now + tonumber(ARGV[3]), ARGV[2] .. ' ' .. ARGV[a + 4])
  end
  store(b)
  used[n] = number(b.level + b.held)
end
return {0, number(now), unpack(used)}
""".replace("RETRY", str(RETRY_CONCURRENT_S))
)

# Then the deadline, and for each counter that holds: kind, drain a second, hold, consumed.
# What is not held any more was settled before, or its lease ran out: then what was consumed counts still.
_SETTLE = (
    _COMMON
    + """
for n = 1, (#ARGV - 5) / 4 do
  local a = 2 + 4 * n
  local b = open(2 * n - 1, ARGV[a], tonumber(ARGV[a + 1]))
  if release(b, ARGV[2] .. ' ' .. ARGV[a + 2]) or now > tonumber(ARGV[5]) then
    b.level = b.level + tonumber(ARGV[a + 3])
    store(b)
  end
end
return {}
"""
)

# Then the hold of each counter that holds. Returns now, or '' where the lease had run out.
_RENEW = (
    _COMMON
    + """
for n = 1, #ARGV - 4 do
  if not redis.call('ZSCORE', KEYS[2 * n], ARGV[2] .. ' ' .. ARGV[4 + n]) then return '' end
end
for n = 1, #ARGV - 4 do
  redis.call('ZADD', KEYS[2 * n], now + tonumber(ARGV[3]), ARGV[2] .. ' ' .. ARGV[4 + n])
end
return number(now)
"""
)


class RedisLimitStore:
    """`url` as ``redis://host:6379/0``, or rediss:// for TLS. Close it when done. `now`: in place of Redis's clock."""

    def __init__(self, url: str, now: Callable[[], float] | None = None) -> None:
        self._redis: Redis = Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        self._now = now
        self._take, self._settle, self._renew = map(self._redis.register_script, (_TAKE, _SETTLE, _RENEW))

    async def take(self, reservation: Reservation) -> None:
        asked = reservation.cost.asked()
        args: list[str] = []
        for counter in reservation.counters:
            kind, drain = _kind(counter.quota)
            amount = repr(float(asked[counter.kind]))
            spend, hold = (amount, "") if counter.kind == "requests" else ("0", amount)
            args += (kind, drain, repr(float(counter.quota.capacity)), spend, hold)
        refused, first, *rest = await self._run(self._take, reservation, reservation.counters, args)
        if refused:
            counter, wait = reservation.counters[first], float(rest[0])
            used = [float(each) for each in rest[1:]]
            raise LimitExceeded(counter, None if wait < 0 else wait, asked[counter.kind], used)
        reservation.deadline = float(first) + LEASE_S
        reservation.used = [float(each) for each in rest]

    async def settle(self, reservation: Reservation, actual: Cost) -> None:
        holding = _holding(reservation)
        held, consumed = reservation.cost.asked(), actual.consumed()
        args = [repr(reservation.deadline)]
        for counter in holding:
            args += (*_kind(counter.quota), repr(float(held[counter.kind])), repr(float(consumed[counter.kind])))
        await self._run(self._settle, reservation, holding, args)

    async def renew(self, reservations: Sequence[Reservation]) -> None:
        for reservation in reservations:
            holding, held = _holding(reservation), reservation.cost.asked()
            args = [repr(float(held[counter.kind])) for counter in holding]
            if now := await self._run(self._renew, reservation, holding, args):
                reservation.deadline = float(now) + LEASE_S

    async def close(self) -> None:
        await self._redis.aclose()

    async def _run(self, script: Any, reservation: Reservation, counters: Sequence[Counter], args: list[str]) -> Any:
        now = "" if self._now is None else repr(self._now())
        keys = [key for counter in counters for key in _keys(counter.bucket)]
        try:
            return await script(keys=keys, args=[now, reservation.id, LEASE_S, KEEP_S, *args])
        except (RedisError, OSError) as error:
            log.error("limits cannot be counted: %s", type(error).__name__)
            message = "Limits cannot be checked now, so no request is processed"
            raise LimitsUnavailable(message, retry_after_s=2) from None


def _holding(reservation: Reservation) -> list[Counter]:
    return [counter for counter in reservation.counters if counter.kind != "requests"]


def _keys(bucket: str) -> tuple[str, str]:
    """The bucket's and its holds'; in one slot by the tenant in braces."""
    tenant = bucket.partition("/")[0].partition(":")[0]
    name = f"domicile:limit:{{{tenant}}}{bucket.removeprefix(tenant)}"
    return name, f"{name}:holds"


def _kind(quota: Quota) -> tuple[str, str]:
    """Which arithmetic, and how much drains a second."""
    if isinstance(quota, Rate):
        return "rate", repr(quota.amount / quota.period)
    return (quota.span, "0") if isinstance(quota, Budget) else ("concurrent", "0")
