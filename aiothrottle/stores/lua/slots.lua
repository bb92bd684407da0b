-- `SlotTable` of stores/slots.py, once more, on the server's clock and atomically.
--
-- KEYS: when the lease of each owner expires (a sorted set), the part of each owner (a hash),
--       the owner of each ticket (a list)
-- ARGV: the time, or '' for the server's; the beginning of the names of channels, which the id of a
--       store follows; then the numbers of a Claim: owner, limit, held, wanted, lease, number
--
-- An owner without slots or tickets is remembered until its lease expires: so a claim that was under
-- way for long is known to be older than later ones. A damaged record is replaced by one in which all
-- slots are taken for a lease: by then each living owner has claimed. The last number of the answer
-- says so.

local EPOCH = 1767225600  -- as in record.py

local call, max, min = redis.call, math.max, math.min
local ceil, floor, abs = math.ceil, math.floor, math.abs
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

local DAMAGED = 'damaged'
local LATEST = 1e10  -- as in dumps.py
local MOST = 2 ^ 53  -- as in dumps.py
local UNKNOWN = '.unknown'  -- as in slots.py
local RECOUNT = 1  -- seconds

local function damage() error(DAMAGED, 0) end

-- The reply of a command that fails if the key is of another type.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then damage() end
    error(reply, 0)
  end
  return reply
end

-- A number of the record between the two; the default if there is none.
local function number_of(text, default, least, most)
  local number = default
  if text then number = tonumber(text) end
  if not (number and least <= number and number <= most) then damage() end
  return number
end

local function count_of(text)
  local count = number_of(text, 0, 0, MOST)
  if floor(count) ~= count then damage() end
  return count
end

local function part_of(name)
  local part = read('HGET', parts, name)
  if not part then return 0, 0, 0 end
  local number, held, wanted = string.match(part, '^(%d+) (%d+) (%d+)$')
  if not number then damage() end
  return count_of(number), count_of(held), count_of(wanted)
end

local seen, ahead, taken, sharing, counted, now, last, had, tickets
local expired = {}

-- Reads the record, and checks what is cheap to check: the rest once a second.
local function open()
  local times = read('HMGET', parts, '.seen', '.ahead', '.taken', '.sharing', '.counted')
  local fields, owners = read('HLEN', parts), read('ZCARD', leases)
  local waiting = read('LLEN', queue)
  local meta = 0
  for place = 1, 5 do if times[place] then meta = meta + 1 end end
  if fields ~= (fields > 0 and 5 or 0) + owners or meta ~= (fields > 0 and 5 or 0) then damage() end
  seen = times[1] and number_of(times[1], 0, -LATEST, LATEST) or -1e300
  ahead = number_of(times[2], 0, 0, LATEST)
  taken = count_of(times[3])
  sharing = count_of(times[4])  -- owners that hold or want slots
  counted = times[5] and number_of(times[5], 0, -LATEST, LATEST) or -1e300
  now = clock + ahead
  if now < seen then ahead, now = seen - clock, seen end
  if owners > 0 then
    local first = tonumber(read('ZRANGE', leases, 0, 0, 'WITHSCORES')[2])
    local latest = tonumber(read('ZREVRANGE', leases, 0, 0, 'WITHSCORES')[2])
    -- What had expired was dropped by the last claim.
    if not (seen < first and latest <= LATEST) then damage() end
  end
  if abs(now - counted) >= RECOUNT then
    local held, wanted, active = 0, 0, 0
    local fields = read('HGETALL', parts)
    for place = 1, #fields, 2 do
      if string.sub(fields[place], 1, 1) ~= '.' or fields[place] == UNKNOWN then
        local _, has, wants = part_of(fields[place])
        held, wanted = held + has, wanted + wants
        if has + wants > 0 then active = active + 1 end
      end
    end
    if held ~= taken or wanted ~= waiting or active ~= sharing then damage() end
    counted = now
  end
  last, had, tickets = part_of(owner)
  for place, name in ipairs(read('ZRANGEBYSCORE', leases, '-inf', exact(now))) do
    local _, has, waits = part_of(name)
    expired[place] = {name = name, had = has, tickets = waits}
  end
  if waiting > 0 and limit > taken then  -- a ticket of no owner would block the others for ever
    for _, name in ipairs(read('LRANGE', queue, 0, limit - taken - 1)) do
      if name ~= owner and not call('HGET', parts, name) then damage() end
    end
  end
end

local sound, problem = pcall(open)
if not sound then
  if problem ~= DAMAGED then error(problem, 0) end
  call('DEL', leases, parts, queue)
  seen, ahead, now, counted, taken, sharing = clock, 0, clock, clock, limit, 1
  last, had, tickets, expired = 0, 0, 0, {}
  call('ZADD', leases, exact(now + lease), UNKNOWN)
  call('HSET', parts, UNKNOWN, '0 ' .. limit .. ' 0')
end
if last > number then return {0, 0, '0', 0, 0} end

-- Whether an owner may be nearer to the head of the queue than before: then it is woken.
local moved = false

for _, dead in ipairs(expired) do
  taken = taken - dead.had
  if dead.had + dead.tickets > 0 then sharing = sharing - 1 end
  if dead.tickets > 0 then call('LREM', queue, 0, dead.name) end
  call('HDEL', parts, dead.name)
  call('ZREM', leases, dead.name)
  if dead.name == owner then had, tickets = 0, 0 end
  moved = true
end
local unknown = call('HGET', parts, UNKNOWN)

taken = taken + held - had
if had + tickets == 0 then sharing = sharing + 1 end
local share = floor(limit / max(1, sharing))
for _ = tickets + 1, wanted do call('RPUSH', queue, owner) end
if wanted < tickets then call('LREM', queue, wanted - tickets, owner) end
-- Up to its share, which may have grown, an owner goes before others.
local leading = min(wanted, share - held)
if leading > 0 then call('LREM', queue, leading, owner) end
for _ = 1, leading do call('LPUSH', queue, owner) end
if held + wanted == 0 then sharing = sharing - 1 end
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
  '.seen', exact(now), '.ahead', exact(ahead), '.taken', exact(taken),
  '.sharing', sharing, '.counted', exact(counted))

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
      -- A store listens once, for all of its owners. All is written: where the message is not
      -- permitted, the owner asks by itself.
      redis.pcall('PUBLISH', ARGV[2] .. string.match(name, '^[^.]*'), name)
    end
  end
end

local first = call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2]
local lost = 0
if not unknown then
  lost = max(0, held - had)
  if taken > limit then share = 0 end
end
return {granted, lost, exact(first - now), share, sound and 0 or 1}
