-- The methods of a record in stores/ledger.py, once more, on the server's clock and atomically.
--
-- KEYS: the record, the answer to this request, a log for each sliding window log
-- ARGV: method; seal and numbers of the algorithm; milliseconds for which the answer is kept, and
--       numbers of the method; the time, or '' for the server's. All numbers are packed doubles.
--
-- The answer is text, as a client may decode replies. A request changes the record once: when the
-- driver retries it, it gets the same answer.

local EPOCH = 1767225600  -- as in ledger.py
local LATEST = 1e10  -- as in ledger.py
local LONGEST = 1e13  -- milliseconds: three hundred years

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

local kept = call('GET', KEYS[1])
if kept and string.sub(kept, 1, SEAL) ~= seal then return 'other algorithm' end
local seen, ahead, last = -huge, 0, -huge
local state = {}
if kept then
  state = unpacked(kept, SEAL)
  if #state < 3 then return 'damaged' end
  seen, ahead, last = state[1], state[2], state[3]
end

local algorithm_numbers = unpacked(ARGV[2], SEAL)
local all_of = algorithm_numbers[1] == 1
local algorithms, windows, logs = {}, {}, {}
local periods = {}  -- the algorithms that count in periods, by the place of the period in `state`

local function last_taken() return last end

local place, at = 2, 4  -- the state follows the three times
while algorithm_numbers[place] do
  local kind, algorithm, count = algorithm_numbers[place]
  if kind == 1 then
    count = 8
    algorithm = level_algorithm(state, at, unpack(algorithm_numbers, place + 1, place + count))
    if not algorithm then return 'damaged' end
  elseif kind == 2 then
    count = 3
    logs[#logs + 1] = KEYS[3 + #logs]
    algorithm = rolling_algorithm(state, at, logs[#logs], last_taken,
      unpack(algorithm_numbers, place + 1, place + count))
    windows[#logs] = algorithm
  elseif kind == 3 then
    count = 3
    algorithm = fixed_algorithm(state, at, unpack(algorithm_numbers, place + 1, place + count))
  else
    count = 4
    algorithm = sliding_algorithm(state, at, unpack(algorithm_numbers, place + 1, place + count))
  end
  if not algorithm.keep then
    local first, final = at, at + algorithm.size - 1
    function algorithm.keep(numbers)
      for place = first, final do numbers[#numbers + 1] = state[place] end
    end
  end
  algorithms[#algorithms + 1] = algorithm
  if kind > 2 then periods[at] = algorithm end
  place, at = place + 1 + count, at + algorithm.size
end

-- A record that no store has written is neither read nor overwritten: a request that waits for a
-- NaN would start, and the search for the beginning of half a period would never end.
if kept then
  local sound = #kept == SEAL + 8 * (at - 1) and ahead >= 0 and max(seen, ahead) <= LATEST
  for place = 1, at - 1 do sound = sound and state[place] < huge end
  for first, algorithm in pairs(periods) do
    local index = state[first]
    sound = sound and (index == -huge or (floor(index) == index and abs(index) < 2 ^ 53))
    for place = first + 1, first + algorithm.size - 1 do sound = sound and state[place] >= 0 end
  end
  if not sound then return 'damaged' end
end

local function greatest(method_of_algorithm, ...)
  local most = 0
  for _, algorithm in ipairs(algorithms) do
    most = max(most, algorithm[method_of_algorithm](...))
  end
  return most
end

local function delay_of_all(now, cost)
  local wait = greatest('delay', now, cost)
  while all_of and 0 < wait and wait < huge do
    local more = greatest('delay', now + wait, cost)
    if more <= 0 then break end
    wait = max(wait + more, wait + ulp(abs(now) + wait))
  end
  return wait
end

local delay = #algorithms == 1 and algorithms[1].delay or delay_of_all

-- ---- the methods --------------------------------------------------------------------------------

local now = max(clock + ahead, seen)
local changed = false

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
local instants, retry_after = {}, 0

if method == 'reserve' then
  local horizon, max_wait = given[2], given[3]
  if clock + ahead < seen then see() end
  for place = 4, #given do
    local cost, instant = given[place], now
    if cost ~= 0 then
      instant = ready_at(cost)
      local wait = wait_until(instant, now)
      if wait > horizon or wait == huge then
        retry_after = wait
        if max_wait <= horizon and wait < huge then
          for rejected = place, #given do take(now, given[rejected]) end
        end
        break
      end
      take(instant, cost)
    end
    instants[place - 3] = instant
  end
elseif method == 'peek' then
  if given[2] ~= 0 then retry_after = wait_until(ready_at(given[2]), now) end
elseif method == 'record' then
  if given[2] ~= 0 then take(now, given[2]) end
elseif method == 'refund' then
  for _, algorithm in ipairs(algorithms) do algorithm.refund(now, given[2], given[3]) end
  see()
end

-- ---- the answer ---------------------------------------------------------------------------------

local remaining = 0
if last <= now then
  remaining = huge
  for _, algorithm in ipairs(algorithms) do remaining = min(remaining, algorithm.remaining(now)) end
end
local reset_after = max(greatest('reset_after', now), wait_until(last, now))

local texts = {}
local function add(number) texts[#texts + 1] = string.format('%.17g', number) end
add(now) add(retry_after) add(remaining) add(reset_after)
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
