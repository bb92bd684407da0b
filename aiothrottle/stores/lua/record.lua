-- The methods of a record in stores/record.py, once more, on the server's clock and atomically.
--
-- KEYS: the record, the answer to this request, a log for each sliding window log
-- ARGV: method; seal and numbers of the algorithm; milliseconds for which the answer is kept,
--       numbers of the method, and its costs; the time, or '' for the server's. All numbers are
--       packed doubles.
--
-- The answer is text, as a client may decode replies. A request changes the record once: when the
-- driver retries it, it gets the same answer. A damaged record is replaced by one that is exhausted,
-- and the answer begins with "damaged".

local EPOCH = 1767225600  -- as in record.py
local LONGEST = 1e13  -- milliseconds: three hundred years

local OTHER = 'other algorithm'
local SEAL = 8  -- bytes
local method, seal, given_time = ARGV[1], string.sub(ARGV[2], 1, SEAL), ARGV[4]

local BULK = 128  -- the most numbers in one call, which takes a bounded number of arguments

-- The packed numbers behind the first `skipped` bytes.
local function unpacked(packed, skipped)
  local numbers, read, count = {}, 0, (#packed - skipped) / 8
  for first = 0, count - 1, BULK do
    local format = '<' .. string.rep('d', min(count - first, BULK))
    local some = {struct.unpack(format, packed, skipped + 8 * first + 1)}
    some[#some] = nil  -- where it stopped
    if count <= BULK then return some end
    for place = 1, #some do numbers[read + place] = some[place] end
    read = read + #some
  end
  return numbers
end

local function pack_all(numbers)
  if #numbers <= BULK then
    return struct.pack('<' .. string.rep('d', #numbers), unpack(numbers))
  end
  local packed = {}
  for first = 1, #numbers, BULK do
    local last = min(first + BULK - 1, #numbers)
    local format = '<' .. string.rep('d', last - first + 1)
    packed[#packed + 1] = struct.pack(format, unpack(numbers, first, last))
  end
  return table.concat(packed)
end

local answered = method ~= 'peek' and call('GET', KEYS[2])
if answered then return answered end

local clock
if given_time ~= '' then
  clock = struct.unpack('<d', given_time)
else
  local time = call('TIME')
  clock = (time[1] - EPOCH) + time[2] / 1e6
end

-- ---- the record ---------------------------------------------------------------------------------

local algorithm_numbers = unpacked(ARGV[2], SEAL)
-- How many resources a cost has, one behind the other: then it is a list here, else a number.
local resources = algorithm_numbers[1] - 1
local width = max(resources, 1)
local seen, ahead, last, now, changed
local algorithms, windows, logs

local function last_taken() return last end

-- The numbers of the record; nothing if there is none.
local function kept_numbers()
  local kept = redis.pcall('GET', KEYS[1])
  if type(kept) == 'table' then
    if string.find(kept.err, 'WRONGTYPE', 1, true) then damage() end
    error(kept, 0)
  end
  if not kept then return end
  if #kept < SEAL + 24 then damage() end
  local numbers = unpacked(kept, SEAL)
  local seen, ahead, last = numbers[1], numbers[2], numbers[3]
  if not (is_time(seen) and is_time(last) and 0 <= ahead and ahead <= LATEST) then damage() end
  if string.sub(kept, 1, SEAL) ~= seal then error(OTHER, 0) end
  return numbers, #kept
end

-- Lets the algorithm take the tokens of its resource from a cost.
local function narrow(algorithm, resource)
  local delay, take, refund = algorithm.delay, algorithm.take, algorithm.refund
  algorithm.resource = resource
  function algorithm.delay(now, cost)
    if cost[resource] == 0 then return 0 end
    return delay(now, cost[resource])
  end
  function algorithm.take(now, cost)
    if cost[resource] ~= 0 then take(now, cost[resource]) end
  end
  function algorithm.refund(now, cost, instant)
    if cost[resource] ~= 0 then refund(now, cost[resource], instant) end
  end
  algorithm.most = {[resource] = algorithm.most}
end

-- Sets the times and the algorithms to those of the numbers, or to fresh ones.
local function open(state, size)
  seen, ahead, last, changed = -huge, 0, -huge, false
  local fresh = not state
  if state then seen, ahead, last = state[1], state[2], state[3] else state = {} end
  algorithms, windows, logs = {}, {}, {}
  local place, at = 2, 4  -- the state follows the three times
  while algorithm_numbers[place] do
    local resource
    if resources > 0 then resource, place = algorithm_numbers[place], place + 1 end
    local kind, algorithm, count = algorithm_numbers[place]
    if kind == 1 then
      count = 8
      algorithm = level_algorithm(state, at, unpack(algorithm_numbers, place + 1, place + count))
    elseif kind == 2 then
      count = 3
      logs[#logs + 1] = KEYS[3 + #logs]
      algorithm = rolling_algorithm(state, at, logs[#logs], not resource and last_taken,
        unpack(algorithm_numbers, place + 1, place + count))
      windows[#logs] = algorithm
    else
      count = 4
      algorithm = sections_algorithm(state, at, unpack(algorithm_numbers, place + 1, place + count))
    end
    if not algorithm.keep then
      local first, final = at, at + algorithm.size - 1
      function algorithm.keep(numbers)
        for place = first, final do numbers[#numbers + 1] = state[place] end
      end
    end
    if resource then narrow(algorithm, resource) end
    algorithms[#algorithms + 1] = algorithm
    place, at = place + 1 + count, at + algorithm.size
  end
  now = max(clock + ahead, seen)
  if fresh then return end
  if size ~= SEAL + 8 * (at - 1) then damage() end
  for _, algorithm in ipairs(algorithms) do
    -- A log is checked as it is read.
    local is_log = algorithm.kind == 2
    if not (is_log or algorithm.reset_after(max(seen, 0)) <= LATEST) then damage() end
  end
end

local function greatest(method_of_algorithm, ...)
  local most = 0
  for _, algorithm in ipairs(algorithms) do
    most = max(most, algorithm[method_of_algorithm](...))
  end
  return most
end

local function delay(now, cost)
  if #algorithms == 1 then return algorithms[1].delay(now, cost) end
  local wait = greatest('delay', now, cost)
  while 0 < wait and wait < huge do
    local more = greatest('delay', now + wait, cost)
    if more <= 0 then break end
    wait = max(wait + more, wait + ulp(abs(now) + wait))
  end
  return wait
end

-- ---- the methods --------------------------------------------------------------------------------

local function ready_at(cost)
  local begin = max(now, last)
  return begin + delay(begin, cost)
end

local function see()
  ahead, seen, changed = max(ahead, now - clock), now, true
end

local function take(instant, cost)
  see()
  for place = 1, #algorithms do algorithms[place].take(instant, cost) end
  last = max(last, instant)
end

local given = unpacked(ARGV[3], 0)
local keep = given[1]
local instants, retry_after

local function cost_at(place)
  if resources <= 0 then return given[place] end
  return {unpack(given, place, place + resources - 1)}
end

local function is_none(cost)
  if resources <= 0 then return cost == 0 end
  for _, tokens in ipairs(cost) do
    if tokens ~= 0 then return false end
  end
  return true
end

local function decide()
  instants, retry_after = {}, 0
  if method == 'reserve' then
    local max_reservation, max_wait = given[2], given[3]
    if clock + ahead < seen then see() end
    for place = 4, #given, width do
      local cost, instant = cost_at(place), now
      if not is_none(cost) then
        instant = ready_at(cost)
        local wait = wait_until(instant, now)
        if wait > max_reservation or wait == huge then
          retry_after = wait
          if max_wait <= max_reservation and wait < huge then
            for rejected = place, #given, width do take(now, cost_at(rejected)) end
          end
          break
        end
        take(instant, cost)
      end
      instants[#instants + 1] = instant
    end
  elseif method == 'peek' then
    local cost = cost_at(2)
    if not is_none(cost) then retry_after = wait_until(ready_at(cost), now) end
  elseif method == 'record' then
    local cost = cost_at(2)
    if not is_none(cost) then take(now, cost) end
  elseif method == 'refund' then
    for _, algorithm in ipairs(algorithms) do algorithm.refund(now, cost_at(3), given[2]) end
    see()
  end
end

-- ---- the answer ---------------------------------------------------------------------------------

local remaining, reset_after  -- what remains of each resource, or the one number of all

local function summarise()
  remaining = {}
  for resource = 1, width do remaining[resource] = last <= now and huge or 0 end
  if last <= now then
    for _, algorithm in ipairs(algorithms) do
      local resource = algorithm.resource or 1
      remaining[resource] = min(remaining[resource], algorithm.remaining(now))
    end
  end
  reset_after = max(greatest('reset_after', now), wait_until(last, now))
end

local sound, problem = pcall(function()
  open(kept_numbers())
  decide()
  summarise()
end)
if not sound then
  if problem == OTHER then return OTHER end
  if problem ~= DAMAGED then error(problem, 0) end
  open()
  see()
  for _, algorithm in ipairs(algorithms) do algorithm.take(now, algorithm.most) end
  last = now
  decide()
  summarise()
end

local texts = {}
if not sound then texts[1] = DAMAGED end
local function add(number) texts[#texts + 1] = string.format('%.17g', number) end
add(now) add(retry_after)
for resource = 1, width do add(remaining[resource]) end
add(reset_after)
local first = 1
for place, instant in ipairs(instants) do
  if instants[place + 1] ~= instant then
    -- The instant, and the number of costs in a row that have it: often a call takes many for one.
    add(instant)
    texts[#texts + 1] = place - first + 1
    first = place + 1
  end
end
local answer = table.concat(texts, ' ')

if changed then
  local record = {seen, ahead, last}
  for _, algorithm in ipairs(algorithms) do algorithm.keep(record) end
  -- Keys expire by the server's clock, not by an injected one.
  local expires = given_time == ''
  local milliseconds = min(ceil(reset_after * 1000) + 1, LONGEST)
  if reset_after <= 0 then
    call('DEL', KEYS[1], unpack(logs))
  elseif expires then
    call('SET', KEYS[1], seal .. pack_all(record), 'PX', milliseconds)
    for _, window in ipairs(windows) do window.write(milliseconds) end
  else
    call('SET', KEYS[1], seal .. pack_all(record))
    for _, window in ipairs(windows) do window.write() end
  end
  call('SET', KEYS[2], answer, 'PX', keep)
end

return answer
