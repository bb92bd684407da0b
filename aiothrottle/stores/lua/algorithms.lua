-- The algorithms of aiothrottle/algorithms, once more: the same steps in the same order, so that
-- they decide alike to the last bit of a double. An algorithm has its constants (see
-- stores/port.py) and a place in `state`, a flat list of numbers, where it puts those of a fresh
-- state if there are none; only the sliding window log has a list of its own.

local call = redis.call

-- ---- TokenBucket, LeakyBucket, WaitUntil, Cooldown: a level that drains -------------------------

local ROUNDING = 1e-9  -- as in level.py
local MANY = 32  -- as in level.py
local CLOSE = 1 + 1 / MANY

-- The constants are those of Draining in level.py. The state is the tokens, at, since, the
-- count of the lows, and the pairs of ends and lows.
local function level_algorithm(
  state, at, limit, period, capacity, own_room, brim, top, all_or_nothing, last_only
)
  local tokens, when = state[at] or 0, state[at + 1] or -huge
  local since, count = state[at + 2] or -huge, state[at + 3] or 0
  if not (is_amount(tokens) and is_time(when) and is_time(since)) then damage() end
  if not (0 <= count and count <= 2 * MANY and floor(count) == count) then damage() end
  local algorithm = {size = 4 + 2 * count, most = capacity}
  local ends, lows = {}, {}
  for place = 1, count do
    ends[place], lows[place] = state[at + 2 + 2 * place], state[at + 3 + 2 * place]
    if not (ends[place] and lows[place]) then damage() end
    if not (is_time(ends[place]) and is_amount(lows[place])) then damage() end
    if ends[place] < (ends[place - 1] or since) then damage() end
    if lows[place] < (lows[place - 1] or 0) then damage() end
  end
  if when < (ends[count] or since) or (tokens > 0 and when == -huge) then damage() end

  function algorithm.keep(numbers)
    numbers[#numbers + 1], numbers[#numbers + 2] = tokens, when
    numbers[#numbers + 1], numbers[#numbers + 2] = since, #lows
    for place = 1, #lows do
      numbers[#numbers + 1], numbers[#numbers + 2] = ends[place], lows[place]
    end
  end

  local function tokens_at(now)
    local level = tokens - (now - when) * limit / period
    if level > 0 then return level else return 0 end
  end

  local function forget(now) since, ends, lows = now, {}, {} end

  local function note(now, low)
    if low <= ROUNDING then return forget(now) end
    while #lows > 0 and lows[#lows] >= low do
      lows[#lows], ends[#ends] = nil, nil
    end
    if #lows >= MANY and low < lows[#lows] * CLOSE then
      ends[#ends] = now
      return
    end
    ends[#ends + 1], lows[#lows + 1] = now, low
    if #lows > 2 * MANY then
      local kept_ends, kept_lows = {ends[1]}, {lows[1]}
      for place = 1, #lows do
        if lows[place] < kept_lows[#kept_lows] + low / MANY then
          kept_ends[#kept_ends] = ends[place]
        else
          kept_ends[#kept_ends + 1], kept_lows[#kept_lows + 1] = ends[place], lows[place]
        end
      end
      ends, lows = kept_ends, kept_lows
    end
  end

  local function fits_in(now, cost)
    local level, most = tokens_at(now), brim + ROUNDING
    if level + cost <= most then return 0 end
    local from, begin = tokens, when
    if level <= 0 then from, begin = 0, now end
    local wait = (level + cost - brim) * period / limit
    while from - (now + wait - begin) * limit / period + cost > most do
      wait = wait + ulp(abs(now) + wait)
    end
    return wait
  end

  function algorithm.delay(now, cost)
    if cost > capacity then return huge end
    return fits_in(now, own_room * cost)
  end

  function algorithm.take(now, cost)
    local moved = min(cost, top - tokens_at(now))
    if moved <= 0 then return end
    if now > when then
      local level = tokens - (now - when) * limit / period
      when = now
      if level > 0 then
        note(now, level)
        tokens = level + moved
      else
        forget(now)
        tokens = moved
      end
    else
      tokens = tokens + moved
    end
    if last_only == 1 then forget(when) end
  end

  function algorithm.remaining(now)
    if all_or_nothing == 1 then
      return fits_in(now, 0) > 0 and 0 or capacity
    end
    return max(0, capacity - tokens_at(now))
  end

  function algorithm.reset_after(now)
    local wait = tokens_at(now) * period / limit
    while tokens_at(now + wait) > 0 do wait = wait + ulp(abs(now) + wait) end
    return wait
  end

  function algorithm.refund(now, cost, instant)
    if instant < since then
      if now < instant and tokens_at(instant) <= cost + ROUNDING then
        tokens, when = 0, instant
        forget(instant)
      end
      return
    end
    local first = 1
    while first <= #ends and ends[first] <= instant do first = first + 1 end
    local back = min(cost, tokens_at(max(now, when)))
    if first <= #lows then back = min(back, lows[first]) end
    tokens = tokens - back
    for place = first, #lows do lows[place] = lows[place] - back end
    while first > 1 and first <= #lows and lows[first - 1] >= lows[first] do
      first = first - 1
      table.remove(ends, first)
      table.remove(lows, first)
    end
  end

  return algorithm
end

-- ---- SlidingWindowLog: a list of instants, oldest first -----------------------------------------

-- The most entries that are dropped at once: more would block the server for long.
local FORGET = 512
local CHUNK = 64


local function length_of(log)
  local length = redis.pcall('LLEN', log)
  if type(length) == 'number' then return length end
  if string.find(length.err, 'WRONGTYPE', 1, true) then damage() end
  error(length, 0)
end

local AT_A_TIME = 256  -- entries to read

-- An entry is the instant, and its cost if that is not 1. state[at] is the sum of the costs, or -1
-- while all of them are 1; a log without entries is kept as 0. `last` returns the latest instant of
-- the record, at which every log has taken tokens; a log of one resource has none, but its own
-- latest instant behind the sum.
local function rolling_algorithm(state, at, log, last, limit, period, rounding)
  local algorithm = {size = 1, kind = 2, most = limit}
  local has_own_last = not last
  if has_own_last then
    algorithm.size = 2
    state[at + 1] = state[at + 1] or -huge
    if not is_time(state[at + 1]) then damage() end
    last = function() return state[at + 1] end
  end
  -- Where the record was cleared there may still be its log: the first `take` empties that, or of
  -- one resource, which not every request takes, the first write.
  local is_stale = has_own_last and not state[at]
  local length = state[at] and length_of(log) or 0
  local oldest, newest  -- the first and the last instant, once they are known
  -- The entries that are still to be written, all at once: they count in `length`.
  local entries, unwritten, packed = {}, 0, nil
  if state[at] then
    if not (state[at] == -1 or is_amount(state[at])) then damage() end
    if (length == 0) ~= (state[at] == 0) then damage() end
  end
  if length == 0 then state[at] = -1 end

  local function entry_of(packed)
    if #packed ~= 8 and #packed ~= 16 then damage() end
    local instant, cost = struct.unpack('<d', packed), 1
    if #packed == 16 then cost = struct.unpack('<d', packed, 9) end
    if not (-LATEST <= instant and instant <= last() and is_amount(cost)) then damage() end
    return instant, cost
  end

  function algorithm.keep(numbers)
    numbers[#numbers + 1] = length == 0 and 0 or state[at]
    if has_own_last then numbers[#numbers + 1] = last() end
  end

  local function used() return state[at] < 0 and length or state[at] end

  local function empty()
    call('DEL', log)
    length, oldest, newest, state[at], unwritten, is_stale = 0, nil, nil, -1, 0, false
  end

  function algorithm.write(milliseconds)
    if is_stale then empty() end
    if unwritten > 0 then
      call('RPUSH', log, unpack(entries, 1, unwritten))
      unwritten = 0
    end
    if milliseconds then call('PEXPIRE', log, milliseconds) end
  end

  local function instant_at(place)
    if place >= length - unwritten then algorithm.write() end
    return (entry_of(call('LINDEX', log, place)))
  end

  -- How many of the first entries have left the window, and the instant of the first that has not
  -- if there is one. Mostly few have: so the steps begin short.
  local function gone(now)
    if length == 0 then return 0 end
    oldest = oldest or instant_at(0)
    if oldest + period > now then return 0, oldest end
    local low, high, step, stays = 1, length, 1, nil
    while low < high do
      local place = min(low + step - 1, floor((low + high) / 2))
      local instant = instant_at(place)
      if instant + period > now then
        high, step, stays = place, length, instant
      else
        low, step = place + 1, step * 2
      end
    end
    return low, stays
  end

  local function forget(now)
    if last() + period <= now then return empty() end
    local out, stays = gone(now)
    if out == 0 then return end
    if out > FORGET then out, stays = FORGET, nil end
    algorithm.write()
    for _, packed in ipairs(call('LPOP', log, out)) do
      local _, cost = entry_of(packed)
      if state[at] >= 0 then state[at] = state[at] - cost end
    end
    length, oldest = length - out, stays
    if length == 0 then state[at] = -1 end
  end

  -- The instant at which `missing` tokens, counted from the oldest, have left the window.
  local function leaves_at(missing)
    missing = missing - rounding
    if state[at] < 0 then return instant_at(ceil(missing) - 1) + period end
    algorithm.write()
    for first = 0, length - 1, CHUNK do
      for _, packed in ipairs(call('LRANGE', log, first, first + CHUNK - 1)) do
        local instant, cost = entry_of(packed)
        missing = missing - cost
        if missing <= 0 then return instant + period end
      end
    end
    return last() + period
  end

  function algorithm.delay(now, cost)
    if cost > limit then return huge end
    local missing = used() + cost - limit
    if missing <= rounding then return 0 end
    return wait_until(leaves_at(missing), now)
  end

  function algorithm.take(now, cost)
    forget(now)
    local instant = max(now, last())  -- the list is in order
    if has_own_last then state[at + 1] = instant end
    if instant ~= newest or not packed then
      newest, packed = instant, struct.pack('<d', instant)
    end
    if unwritten == CHUNK then algorithm.write() end
    unwritten = unwritten + 1
    if cost == 1 then
      entries[unwritten] = packed
    else
      if state[at] < 0 then state[at] = length end
      entries[unwritten] = packed .. struct.pack('<d', cost)
    end
    oldest = length == 0 and instant or oldest
    length = length + 1
    if state[at] >= 0 then state[at] = state[at] + cost end
  end

  function algorithm.remaining(now)
    local count = gone(now)
    local expired = count
    if state[at] >= 0 and count > 0 then
      algorithm.write()
      local costs = {}
      for place, packed in ipairs(call('LRANGE', log, 0, count - 1)) do
        local _, cost = entry_of(packed)
        costs[place] = cost
      end
      expired = fsum(costs, 1)
    end
    return min(limit, max(0, limit - used() + expired))
  end

  function algorithm.reset_after(now)
    if length == 0 then return 0 end
    return wait_until((newest or instant_at(length - 1)) + period, now)
  end

  function algorithm.refund(now, cost, instant)
    if instant + period <= now then return end
    local low, high = 0, length  -- how many entries are of that instant or an earlier one
    while low < high do
      local middle = floor((low + high) / 2)
      if instant_at(middle) > instant then high = middle else low = middle + 1 end
    end
    algorithm.write()
    oldest, newest = nil, nil
    local first, removed, is_over = low, 0, false  -- as a rule the last entries: in one step
    while cost > rounding and low > 0 and not is_over do
      local some = call('LRANGE', log, max(0, low - min(ceil(cost), AT_A_TIME)), low - 1)
      for place = #some, 1, -1 do
        if cost <= rounding then break end
        local found, taken = entry_of(some[place])
        is_over = found ~= instant
        if is_over then break end
        low = low - 1
        if taken - cost > rounding then
          if state[at] < 0 then state[at] = length - removed end
          call('LSET', log, low, struct.pack('<dd', found, taken - cost))
          state[at] = state[at] - cost
        else
          first, removed = low, removed + 1
          if state[at] >= 0 then state[at] = state[at] - taken end
        end
        cost = cost - taken
      end
    end
    if removed == 0 then return end
    if first + removed < length then
      for place = first, first + removed - 1 do call('LSET', log, place, '') end
      call('LREM', log, -removed, '')
    elseif first > 0 then
      call('LTRIM', log, 0, first - 1)
    else
      call('DEL', log)
    end
    length = length - removed
    if length == 0 then state[at] = -1 end
  end

  return algorithm
end

-- The search for the beginning of half a section would never end.
local function check_sections(state, at, count, width)
  local index = state[at]
  if index ~= -huge and not (floor(index) == index and abs(index) < MOST) then damage() end
  if not is_time(index * width) then damage() end
  for place = at + 1, at + count do
    if not is_amount(state[place]) or (index == -huge and state[place] > 0) then damage() end
  end
end

-- ---- Sections: the newest section of time, then the count of each, oldest first ----------------

local function sections_algorithm(state, at, limit, width, rounding, buckets)
  local algorithm = {size = 1 + buckets, most = limit}
  state[at] = state[at] or -huge
  for place = at + 1, at + buckets do state[place] = state[place] or 0 end
  check_sections(state, at, buckets, width)

  local function present(now) return max(state[at], floor(now / width)) end
  local function gone(now) return min(buckets, present(now) - state[at]) end

  local function counted(now)
    local counts = {}
    for place = gone(now) + 1, buckets do counts[#counts + 1] = state[at + place] end
    return fsum(counts, 1)
  end

  function algorithm.delay(now, cost)
    if cost > limit then return huge end
    local missing = counted(now) + cost - limit - rounding
    if missing <= 0 then return 0 end
    local index = state[at] + buckets
    for place = gone(now), buckets - 1 do
      missing = missing - state[at + place + 1]
      if missing <= 0 then
        index = state[at] + 1 + place
        break
      end
    end
    if index == present(now) then return 0 end
    return wait_until(edge(index, width), now)
  end

  function algorithm.take(now, cost)
    local index, out = floor(now / width), gone(now)
    if index > state[at] then
      for place = 1, buckets do
        state[at + place] = place + out <= buckets and state[at + place + out] or 0
      end
      state[at] = index
    end
    state[at + buckets] = state[at + buckets] + cost
  end

  function algorithm.remaining(now) return max(0, limit - counted(now)) end

  function algorithm.reset_after(now)
    for age = 0, buckets - 1 do
      if state[at + buckets - age] ~= 0 then
        return wait_until(edge(state[at] - age + buckets, width), now)
      end
    end
    return 0
  end

  function algorithm.refund(now, cost, instant)
    local place = floor(instant / width) - state[at] + buckets - 1
    if gone(now) <= place and place < buckets then
      local rest = state[at + place + 1] - cost
      state[at + place + 1] = rest > rounding and rest or 0
    end
  end

  return algorithm
end
