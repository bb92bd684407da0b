-- `SlotTable` of stores/slots.py, once more, on the server's clock and atomically.
--
-- KEYS: when the lease of each owner expires (a sorted set), the part of each owner (a hash),
--       the owner of each ticket (a list)
-- ARGV: the time, or '' for the server's; the beginning of the names of channels, which the id of a
--       store follows; then the numbers of a Claim: owner, limit, held, wanted, lease, number
--
-- An owner without slots or tickets is remembered until its lease expires: so a claim that was
-- under way for long is known to be older than later ones.

local EPOCH = 1767225600  -- as in ledger.py

local call, max, ceil = redis.call, math.max, math.ceil
local leases, parts, queue = KEYS[1], KEYS[2], KEYS[3]
local owner, limit = ARGV[3], tonumber(ARGV[4])
local held, wanted = tonumber(ARGV[5]), tonumber(ARGV[6])
local lease, number = tonumber(ARGV[7]), tonumber(ARGV[8])

local clock = tonumber(ARGV[1])
if not clock then
  local time = call('TIME')
  clock = (time[1] - EPOCH) + time[2] / 1e6
end

local function exact(number) return string.format('%.17g', number) end

local times = call('HMGET', parts, '.seen', '.ahead', '.taken')
local seen, ahead = tonumber(times[1] or '-1e300'), tonumber(times[2] or '0')
local taken = tonumber(times[3] or '0')
local now = clock + ahead
if now < seen then ahead, now = seen - clock, seen end

local function part_of(name)
  local part = call('HGET', parts, name)
  if not part then return 0, 0, 0 end
  local number, held, wanted = string.match(part, '(%d+) (%d+) (%d+)')
  return tonumber(number), tonumber(held), tonumber(wanted)
end

local last = part_of(owner)
if last > number then return {0, 0, '0'} end

-- Whether an owner may be nearer to the head of the queue than before: then it is woken.
local moved = false

for _, dead in ipairs(call('ZRANGEBYSCORE', leases, '-inf', exact(now))) do
  local _, had, tickets = part_of(dead)
  taken = taken - had
  if tickets > 0 then call('LREM', queue, 0, dead) end
  call('HDEL', parts, dead)
  call('ZREM', leases, dead)
  moved = true
end

local _, had, tickets = part_of(owner)
taken = taken + held - had
for _ = tickets + 1, wanted do call('RPUSH', queue, owner) end
if wanted < tickets then call('LREM', queue, wanted - tickets, owner) end
moved = moved or held < had or wanted < tickets

local granted = 0
if limit > taken then
  for _, name in ipairs(call('LRANGE', queue, 0, limit - taken - 1)) do
    if name == owner then granted = granted + 1 end
  end
  if granted > 0 then
    call('LREM', queue, granted, owner)
    taken = taken + granted
  end
end

call('ZADD', leases, exact(now + lease), owner)
call('HSET', parts, owner, number .. ' ' .. held + granted .. ' ' .. wanted - granted,
  '.seen', exact(now), '.ahead', exact(ahead), '.taken', taken)

if ARGV[1] == '' then  -- keys expire by the server's clock
  local latest = call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')[2]
  local milliseconds = ceil((latest - now) * 1000) + 1
  for _, key in ipairs(KEYS) do call('PEXPIRE', key, milliseconds) end
end

if moved and limit > taken then
  local woken = {}
  for _, name in ipairs(call('LRANGE', queue, 0, limit - taken - 1)) do
    if not woken[name] then
      woken[name] = true
      -- A store listens once, for all of its owners.
      call('PUBLISH', ARGV[2] .. string.match(name, '^[^.]*'), name)
    end
  end
end

local first = call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2]
return {granted, max(0, held - had), exact(first - now)}
