"""Buckets in Redis or Valkey, for limits that hold across gateways and outlive each of them.

The arithmetic is that of `gateway.limits`, as Lua scripts, which Redis runs one at a time: so parallel reservations
anywhere are in a row. What is held has a deadline, for a gateway that dies cannot settle. Every gateway's own clock
counts, so they must agree to within a second or so; a bucket's clock never runs backwards.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.errors import LimitsUnavailable
from gateway.limits import Charge, LimitExceeded, MonthlyBudget, Quota

log = logging.getLogger(__name__)

HOLD_S = 3600
"""What is held longer belongs to nobody any more: no call takes an hour."""
TIMEOUT_S = 2.0
KEEP_S = 40 * 86400  # beyond a month, so that no budget is forgotten within its own
_SCALE = 1e6  # Lua numbers become integers on their way out

# KEYS: the buckets (hash: <name>.level, <name>.held, <name>.at); the holds (sorted set: "<id> <name> <amount>" by its
# deadline).
# ARGV: now, deadline of new holds, id, seconds to keep, then for each charge
# name, capacity, drain a second, start of the budget's month (-1: a rate), its end, hold, spend.
_COMMON = """
local now = tonumber(ARGV[1])
local function bucket(name, drain, month)
  local got = redis.call('HMGET', KEYS[1], name .. '.level', name .. '.held', name .. '.at')
  local level, held, at = tonumber(got[1] or 0), tonumber(got[2] or 0), tonumber(got[3] or now)
  if now > at then
    if month < 0 then level = math.max(0, level - (now - at) * drain) elseif at < month then level = 0 end
    at = now
  end
  return {level = level, held = held, at = at}
end
local function number(x) return string.format('%.17g', x) end
local function store(name, b)
  redis.call('HSET', KEYS[1], name .. '.level', number(b.level), name .. '.held', number(b.held))
  redis.call('HSET', KEYS[1], name .. '.at', number(b.at))
end
local function release(member)
  if redis.call('ZREM', KEYS[2], member) == 0 then return end
  local name, amount = string.match(member, '^%S+ (%S+) (%S+)$')
  local held = tonumber(redis.call('HGET', KEYS[1], name .. '.held') or 0)
  redis.call('HSET', KEYS[1], name .. '.held', number(math.max(0, held - tonumber(amount))))
end
local function keep()
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  redis.call('EXPIRE', KEYS[2], ARGV[4])
end
"""

_TAKE = (
    _COMMON
    + """
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do release(member) end
local buckets, worst, worst_name = {}, nil, nil
for i = 5, #ARGV, 7 do
  local name, capacity, drain = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local month, ends = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local asked = tonumber(ARGV[i + 5]) + tonumber(ARGV[i + 6])
  local b = bucket(name, drain, month)
  buckets[name] = b
  if asked > capacity then return {name, -1} end
  local excess = b.level + b.held + asked - capacity
  if excess > capacity * 1e-9 then
    local wait = month < 0 and excess / drain or ends - now
    if not worst or wait > worst then worst, worst_name = wait, name end
  end
end
if worst then return {worst_name, math.ceil(worst * 1e6)} end
for i = 5, #ARGV, 7 do
  local name, hold, b = ARGV[i], tonumber(ARGV[i + 5]), buckets[ARGV[i]]
  b.held, b.level = b.held + hold, b.level + tonumber(ARGV[i + 6])
  store(name, b)
  if hold > 0 then redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3] .. ' ' .. name .. ' ' .. ARGV[i + 5]) end
end
keep()
return {}
"""
)

_SETTLE = (
    _COMMON
    + """
for i = 5, #ARGV, 7 do
  local name, hold, used = ARGV[i], tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6])
  if hold > 0 then release(ARGV[3] .. ' ' .. name .. ' ' .. ARGV[i + 5]) end
  if used > 0 then
    local b = bucket(name, tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]))
    b.level = b.level + used
    store(name, b)
  end
end
keep()
return {}
"""
)


class RedisLimitStore:
    """`url` as ``redis://host:6379/0``, or rediss:// for TLS. Close it when done."""

    def __init__(self, url: str) -> None:
        self._redis: Redis = Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        self._take = self._redis.register_script(_TAKE)
        self._settle = self._redis.register_script(_SETTLE)

    async def take(self, key: str, reservation: str, charges: Mapping[str, Charge], now: float) -> None:
        """Raises LimitsUnavailable when Redis does not answer: what cannot be counted is not let through."""
        asked = {name: (charge.hold, charge.spend) for name, charge in charges.items()}
        try:
            refused = await self._take(
                keys=_keys(key), args=[repr(now), repr(now + HOLD_S), reservation, KEEP_S, *_args(charges, asked, now)]
            )
        except RedisError as error:
            log.error("limits cannot be counted: %s", type(error).__name__)
            raise LimitsUnavailable(
                "Limits cannot be checked now, so no request is processed", retry_after_s=2
            ) from None
        if refused:
            name, wait = refused
            raise LimitExceeded(name.decode(), None if wait < 0 else wait / _SCALE)

    async def settle(
        self, key: str, reservation: str, charges: Mapping[str, Charge], actual: Mapping[str, float], now: float
    ) -> None:
        """The call was answered already, so a failure is logged; what was held stays so until its deadline."""
        used = {name: (charge.hold, actual.get(name, 0.0)) for name, charge in charges.items()}
        try:
            await self._settle(
                keys=_keys(key), args=[repr(now), repr(now + HOLD_S), reservation, KEEP_S, *_args(charges, used, now)]
            )
        except RedisError as error:
            log.error("usage could not be counted: %s", type(error).__name__)

    async def close(self) -> None:
        await self._redis.aclose()


def _keys(key: str) -> list[str]:
    """In one slot of a cluster, by the braces."""
    return [f"domicile:limit:{{{key}}}", f"domicile:hold:{{{key}}}"]


def _args(charges: Mapping[str, Charge], amounts: Mapping[str, tuple[float, float]], now: float) -> list[Any]:
    args: list[Any] = []
    for name, charge in charges.items():
        args += [name, *_quota(charge.quota, now), *map(repr, amounts[name])]
    return args


def _quota(quota: Quota, now: float) -> tuple[str, str, str, str]:
    """Capacity, drain a second, start and end of the month (-1 for a rate)."""
    if isinstance(quota, MonthlyBudget):
        start = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return repr(quota.capacity), "0", repr(start.timestamp()), repr(now + quota.wait(0.0, now))
    return repr(quota.capacity), repr(quota.amount / quota.period), "-1", "-1"
