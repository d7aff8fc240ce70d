"""Buckets in Redis or Valkey, for limits that hold across gateways and outlive each of them.

The arithmetic is that of `gateway.limits.bucket`, as Lua scripts, which Redis runs one at a time: so parallel
reservations are serialised. The clock is Redis's own, the same for all gateways. A tenant's keys are in one slot of a
cluster.

The commands of a batch are sent in one write. Their arguments about the quotas are the same for every call, so they are
encoded once and cached; only five short arguments of each call are new.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1
from typing import Any

from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from gateway.limits.batching import BatchedOperation, BatchingLimitStore, unavailable
from gateway.limits.bucket import RETRY_CONCURRENT_S, Rate
from gateway.limits.limiter import LEASE_S, Counter, LimitExceeded

TIMEOUT_S = 2.0
KEEP_S = 40 * 86400  # beyond a month, so that no budget is forgotten within its own

# KEYS: for each counter its bucket (hash: level, held, at) and its holds (sorted set: "<reservation> <amount>" by the
# deadline of the lease). ARGV: now ('' for the server's clock), reservation, what was reserved in tokens and in money
# (the same texts all through a reservation's life: they name its holds); then what each script says; then for each
# counter its kind (``<quota>:<measure>``), drain a second and capacity. Numbers leave in one text: Redis makes integers
# of Lua's.
_COMMON = """
local function clock()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1e6
end
local now = clock()
local function number(x) return string.format('%.17g', x) end
local function of(measure, tokens, money) -- what a call takes of such a counter
  if measure == 'tokens' then return tokens end
  if measure == 'money' then return money end
  return '1'
end
local function parts(kind) return string.match(kind, '^(%a+):(%a+)$') end
local function month_begin(at) -- days since 1970 to year, month and day, after H. Hinnant's days_from_civil
  local days = math.floor(at / 86400)
  local z = days + 719468
  local doe = z % 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  return (days - (doy - math.floor((153 * mp + 2) / 5))) * 86400
end
local function span(quota)
  if quota == 'day' then local from = now - now % 86400; return from, from + 86400 end
  local from = month_begin(now)
  return from, month_begin(from + 32 * 86400)
end
local function open(i, quota, drain)
  local got = redis.call('HMGET', KEYS[i], 'level', 'held', 'at')
  local b = {key = KEYS[i], holds = KEYS[i + 1], level = tonumber(got[1] or 0), held = tonumber(got[2] or 0)}
  b.at = tonumber(got[3] or now)
  if now > b.at then
    if quota == 'rate' then b.level = math.max(0, b.level - (now - b.at) * drain)
    elseif quota == 'concurrency' then b.level = 0
    elseif b.at < span(quota) then b.level = 0 end
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
  redis.call('EXPIRE', b.key, KEEP)
  redis.call('EXPIRE', b.holds, KEEP)
end
""".replace("KEEP", str(KEEP_S))

# Then the lease. Returns "0 now used...", or "1 which wait used..."; which from 0, wait -1 where it never fits; 2 in
# place of 1 where it would fit but for what running calls hold.
_TAKE = (
    _COMMON
    + """
local count = (#ARGV - 5) / 3
local buckets, asks, used, never, worst, which, code = {}, {}, {}, nil, nil, nil, '1'
for n = 1, count do
  local a = 3 + 3 * n
  local quota, measure = parts(ARGV[a])
  local drain, capacity = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local b = open(2 * n - 1, quota, drain)
  if measure ~= 'requests' then
    local dead = redis.call('ZRANGEBYSCORE', b.holds, '-inf', now, 'LIMIT', 0, 1000)
    for _, member in ipairs(dead) do release(b, member) end
    if #dead > 0 then store(b) end
  end
  asks[n] = of(measure, ARGV[3], ARGV[4])
  buckets[n], used[n] = b, number(b.level + b.held)
  local asked = tonumber(asks[n])
  local excess = b.level + b.held + asked - capacity
  if asked > capacity then never = never or n end
  if excess > capacity * 1e-9 then
    local wait = tonumber('RETRY')
    local free = b.level + asked - capacity <= capacity * 1e-9
    local held = free and (measure == 'tokens' or measure == 'money')
    if quota == 'rate' then wait = drain > 0 and excess / drain or math.huge
    elseif quota ~= 'concurrency' and not held then local _, ends = span(quota); wait = ends - now end
    if not worst or wait > worst then worst, which, code = wait, n, held and '2' or '1' end
  end
end
if never then return table.concat({'1', never - 1, '-1', unpack(used)}, ' ') end
if worst then return table.concat({code, which - 1, number(worst), unpack(used)}, ' ') end
for n = 1, count do
  local b = buckets[n]
  local _, measure = parts(ARGV[3 + 3 * n])
  if measure == 'requests' then
    b.level = b.level + 1
  else
    b.held = b.held + tonumber(asks[n])
    redis.call('ZADD', b.holds, now + tonumber(ARGV[5]), ARGV[2] .. ' ' .. asks[n])
  end
  store(b)
  used[n] = number(b.level + b.held)
end
return table.concat({'0', number(now), unpack(used)}, ' ')
""".replace("RETRY", str(RETRY_CONCURRENT_S))
)

# Then the deadline, and what was used in tokens and in money; of the counters those that hold.
# What is not held any more was settled before, or its lease ran out: then what was consumed counts still.
_SETTLE = (
    _COMMON
    + """
for n = 1, (#ARGV - 7) / 3 do
  local a = 5 + 3 * n
  local quota, measure = parts(ARGV[a])
  local b = open(2 * n - 1, quota, tonumber(ARGV[a + 1]))
  if release(b, ARGV[2] .. ' ' .. of(measure, ARGV[3], ARGV[4])) or now > tonumber(ARGV[5]) then
    if measure ~= 'running' then b.level = b.level + tonumber(of(measure, ARGV[6], ARGV[7])) end
    store(b)
  end
end
return ''
"""
)

# Then the lease; of the counters those that hold. Returns now, or '' where the lease had run out.
_RENEW = (
    _COMMON
    + """
local holds = {}
for n = 1, (#ARGV - 5) / 3 do
  local _, measure = parts(ARGV[3 + 3 * n])
  holds[n] = ARGV[2] .. ' ' .. of(measure, ARGV[3], ARGV[4])
  if not redis.call('ZSCORE', KEYS[2 * n], holds[n]) then return '' end
end
for n, hold in ipairs(holds) do redis.call('ZADD', KEYS[2 * n], now + tonumber(ARGV[5]), hold) end
return number(now)
"""
)


class RedisLimitStore(BatchingLimitStore):
    """`url` as ``redis://host:6379/0``, or rediss:// for TLS. `now`: in place of Redis's clock."""

    def __init__(self, url: str, now: Callable[[], float] | None = None) -> None:
        super().__init__()
        # Not retried, since whether a broken connection made a step is unknown; the timeout is that of a whole batch.
        pool = ConnectionPool.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=None)
        self._connection: Any = pool.connection_class(**pool.connection_kwargs)
        self._now = now

    async def apply(self, steps: Sequence[BatchedOperation]) -> list[Exception | None]:
        now = b"" if self._now is None else b"%r" % self._now()
        commands = {at: _command(step, now) for at, step in enumerate(steps) if not step.is_void}
        answers = dict(zip(commands, await self._ask(list(commands.values())), strict=True))
        if unknown := [at for at, answer in answers.items() if isinstance(answer, NoScriptError)]:
            await self._connection.disconnect()  # a new one brings the scripts; nothing was done without them
            answers |= zip(unknown, await self._ask([commands[at] for at in unknown]), strict=True)
        return [_outcome(step, answers[at]) if at in answers else None for at, step in enumerate(steps)]

    async def close(self) -> None:
        await super().close()
        await self._connection.disconnect()

    async def _ask(self, commands: Sequence[bytes]) -> list[bytes | Exception]:
        """The reply to each command, in order. If the connection breaks, commands without a reply get the exception."""
        answers: list[bytes | Exception] = []
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._connect()
                await self._connection.send_packed_command(commands)
                while len(answers) < len(commands):
                    try:
                        answers.append(await self._connection.read_response(disable_decoding=True))
                    except ResponseError as refused:
                        answers.append(refused)
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            with suppress(RedisError, OSError):
                await self._connection.disconnect(nowait=True)
            answers += [error] * (len(commands) - len(answers))
        return answers

    async def _connect(self) -> None:
        """Open a connection and load the scripts, if there is none or it was closed."""
        if self._connection.is_connected and not await self._connection.can_read():
            return
        await self._connection.disconnect(nowait=True)
        await self._connection.connect()
        for script in (_TAKE, _SETTLE, _RENEW):
            await self._connection.send_command("SCRIPT", "LOAD", script)
            await self._connection.read_response()


def _command(step: BatchedOperation, now: bytes) -> bytes:
    packed = _packed(tuple(step.reservation.counters))
    cost = step.reservation.cost
    call = (now, step.reservation.id.encode(), b"%r" % float(cost.tokens), b"%r" % float(cost.money))
    if step.kind != "settle":
        script = packed.take if step.kind == "take" else packed.renew
        return script.command(*call, b"%r" % LEASE_S)
    used = (b"%r" % float(step.actual.tokens), b"%r" % float(step.actual.money))
    return packed.settle.command(*call, b"%r" % step.reservation.deadline, *used)


def _outcome(step: BatchedOperation, answer: bytes | Exception) -> Exception | None:
    if isinstance(answer, Exception):
        return unavailable(answer)
    reservation = step.reservation
    if step.kind == "take":
        refused, first, *rest = answer.split()
        if refused != b"0":
            counter, wait = reservation.counters[int(first)], float(rest[0])
            used = [float(each) for each in rest[1:]]
            asked = reservation.cost.asked()[counter.kind.measure]
            return LimitExceeded(counter, None if wait < 0 else wait, asked, used, held=refused == b"2")
        reservation.deadline = float(first) + LEASE_S
        reservation.used = [float(each) for each in rest]
    elif step.kind == "renew" and answer:
        reservation.deadline = float(answer) + LEASE_S
    return None


@dataclass(frozen=True, slots=True)
class _Script:
    """The command of a script for certain counters, without the arguments that differ for each call."""

    head: bytes
    tail: bytes

    def command(self, *arguments: bytes) -> bytes:
        return b"".join((self.head, *(b"$%d\r\n%b\r\n" % (len(each), each) for each in arguments), self.tail))


@dataclass(frozen=True, slots=True)
class _Packed:
    take: _Script
    settle: _Script
    renew: _Script


@lru_cache(maxsize=4096)
def _packed(counters: tuple[Counter, ...]) -> _Packed:
    holding = [counter for counter in counters if counter.kind.is_held]
    return _Packed(_script(_TAKE, counters, 5), _script(_SETTLE, holding, 7), _script(_RENEW, holding, 5))


def _script(script: str, counters: Sequence[Counter], arguments: int) -> _Script:
    """`arguments`: how many differ for each call."""
    keys = [key for counter in counters for key in _keys(counter.bucket)]
    said = [
        text for counter in counters for text in (_kind(counter), _drain(counter), repr(float(counter.quota.capacity)))
    ]
    digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
    front = ("EVALSHA", digest, str(len(keys)), *keys)
    return _Script(b"*%d\r\n" % (len(front) + arguments + len(said)) + _bulk(front), _bulk(said))


def _bulk(texts: Sequence[str]) -> bytes:
    """`texts` as bulk strings of RESP, Redis's protocol."""
    return b"".join(b"$%d\r\n%b\r\n" % (len(raw), raw) for raw in (text.encode() for text in texts))


def _kind(counter: Counter) -> str:
    """How the quota drains, and what is counted: ``rate:tokens``, ``concurrency:running``, ``month:money``."""
    return f"{counter.quota.name}:{counter.kind.measure}"


def _drain(counter: Counter) -> str:
    """The amount that drains per second."""
    quota = counter.quota
    return repr(quota.amount / quota.period) if isinstance(quota, Rate) else "0"


def _keys(bucket: str) -> tuple[str, str]:
    """The keys of the bucket and of its holds; the tenant in braces puts them into one slot."""
    tenant = bucket.partition("/")[0].partition(":")[0]
    name = f"domicile:limit:{{{tenant}}}{bucket.removeprefix(tenant)}"
    return name, f"{name}:holds"
