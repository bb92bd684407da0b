-- The laws of aiothrottle/algorithms, once more: the same steps in the same order, so that they
-- decide alike to the last bit of a double. A law is made of its numbers (see stores/port.py) and
-- of its place in `state`, a flat list of numbers, in which it puts those of a fresh state if there
-- are none; only a rolling window has a list of its own.

local call = redis.call

-- ---- TokenBucket, LeakyBucket, WaitUntil, Cooldown: one theoretical arrival time -----------------

-- numbers: interval, capacity, does a cost need room for itself (1 or 0), brim, most, how far ahead
-- of now it gets, what a refund finds (plus the cost: 1 or 0), is it all or nothing (1 or 0).
-- `last` tells the latest instant of the record.
local function arrival_law(state, at, last, interval, capacity, own, brim, most, limit, left, plus, whole)
  local law = {size = 1}
  local one_by_one = interval + own * interval > most  -- see Record._give_back
  state[at] = state[at] or -huge

  local function drained_in(now, spent)
    local empty_at = state[at]
    local level = max(0, empty_at - now) + spent
    if level <= most then return 0 end
    local wait = level - brim
    empty_at = max(empty_at, now)
    while (empty_at - (now + wait)) + spent > most do wait = wait + ulp(abs(now) + wait) end
    return wait
  end

  function law.delay(now, cost)
    if cost > capacity then return huge end
    return drained_in(now, own * (cost * interval))
  end

  function law.take(now, cost)
    local empty_at = max(state[at], now) + cost * interval
    state[at] = max(state[at], min(empty_at, now + limit))
  end

  function law.remaining(now)
    if whole == 1 then
      return drained_in(now, 0) > 0 and 0 or capacity
    end
    return max(0, capacity - max(0, state[at] - now) / interval)
  end

  function law.reset_after(now) return wait_until(state[at], now) end

  function law.refund(now, cost, instant)
    if one_by_one and instant <= now and instant < last() then return end
    local empty_at, spent = state[at], cost * interval
    local found = left + plus * spent
    if instant > now and empty_at > instant + found + 1e-9 * spent + 4 * ulp(instant) then return end
    local back = spent - max(0, now - instant)
    if back > 0 and empty_at > now then state[at] = max(now, empty_at - back) end
  end

  return law
end

-- ---- RollingWindow: a list of instants, oldest first ---------------------------------------------

-- Of many that have left the window only so many go at once, or a script would stop the server.
local FORGET = 512
local CHUNK = 64

local function entry_of(packed)
  local instant = struct.unpack('<d', packed)
  if #packed == 8 then return instant, 1 end
  return instant, (struct.unpack('<d', packed, 9))
end

-- An entry is the instant, and its cost if that is not 1. state[at] is the sum of the costs, or -1
-- while all of them are 1. `last` tells the latest instant of the record.
local function rolling_law(state, at, log, last, limit, period, rounding)
  local law = {size = 1}
  -- Where the record was cleared there may still be its log: the first `take` empties that.
  local length = state[at] and call('LLEN', log) or 0
  local oldest, newest  -- the first and the last instant, once they are known
  -- What has still to be written, all at once: it counts in `length`.
  local entries, unwritten, packed = {}, 0, nil
  if length == 0 then state[at] = -1 end

  local function used() return state[at] < 0 and length or state[at] end

  function law.write(milliseconds)
    if unwritten > 0 then
      call('RPUSH', log, unpack(entries, 1, unwritten))
      unwritten = 0
    end
    if milliseconds then call('PEXPIRE', log, milliseconds) end
  end

  local function instant_at(place)
    if place >= length - unwritten then law.write() end
    return (entry_of(call('LINDEX', log, place)))
  end

  local function empty()
    call('DEL', log)
    length, oldest, newest, state[at], unwritten = 0, nil, nil, -1, 0
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
    law.write()
    for _, packed in ipairs(call('LPOP', log, out)) do
      local _, cost = entry_of(packed)
      if state[at] >= 0 then state[at] = state[at] - cost end
    end
    length, oldest = length - out, stays
    if length == 0 then state[at] = -1 end
  end

  -- The instant at which `missing` tokens, counted from the oldest, are out.
  local function leaves_at(missing)
    missing = missing - rounding
    if state[at] < 0 then return instant_at(ceil(missing) - 1) + period end
    law.write()
    for first = 0, length - 1, CHUNK do
      for _, packed in ipairs(call('LRANGE', log, first, first + CHUNK - 1)) do
        local instant, cost = entry_of(packed)
        missing = missing - cost
        if missing <= 0 then return instant + period end
      end
    end
    return last() + period
  end

  function law.delay(now, cost)
    if cost > limit then return huge end
    local missing = used() + cost - limit
    if missing <= rounding then return 0 end
    return wait_until(leaves_at(missing), now)
  end

  function law.take(now, cost)
    forget(now)
    local instant = max(now, last())  -- the list is in order
    if instant ~= newest or not packed then
      newest, packed = instant, struct.pack('<d', instant)
    end
    if unwritten == CHUNK then law.write() end
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

  function law.remaining(now)
    local count = gone(now)
    local left = count
    if state[at] >= 0 and count > 0 then
      law.write()
      local costs = {}
      for place, packed in ipairs(call('LRANGE', log, 0, count - 1)) do
        local _, cost = entry_of(packed)
        costs[place] = cost
      end
      left = fsum(costs, 1)
    end
    return min(limit, max(0, limit - used() + left))
  end

  function law.reset_after(now)
    if length == 0 then return 0 end
    return wait_until((newest or instant_at(length - 1)) + period, now)
  end

  function law.refund(now, cost, instant)
    if instant + period <= now then return end
    local low, high = 0, length  -- how many entries are of that instant or an earlier one
    while low < high do
      local middle = floor((low + high) / 2)
      if instant_at(middle) > instant then high = middle else low = middle + 1 end
    end
    law.write()
    oldest, newest = nil, nil
    while cost > rounding and low > 0 do
      local found, went = entry_of(call('LINDEX', log, low - 1))
      if found ~= instant then break end
      low = low - 1
      if went - cost > rounding then
        if state[at] < 0 then state[at] = length end
        call('LSET', log, low, struct.pack('<dd', found, went - cost))
        state[at] = state[at] - cost
      else
        call('LSET', log, low, '')
        call('LREM', log, -1, '')
        length = length - 1
        if state[at] >= 0 then state[at] = state[at] - went end
      end
      cost = cost - went
    end
    if length == 0 then state[at] = -1 end
  end

  return law
end

-- ---- FixedWindow: which period is counted, and what went in it -----------------------------------

local function fixed_law(state, at, limit, period, rounding)
  local law = {size = 2}
  state[at], state[at + 1] = state[at] or -huge, state[at + 1] or 0

  local function seen(now)
    local index = floor(now / period)
    if index > state[at] then return index, 0 end
    return state[at], state[at + 1]
  end

  function law.delay(now, cost)
    if cost > limit then return huge end
    local index, count = seen(now)
    local wanted, free = cost - rounding, max(0, limit - count)
    if wanted <= free then return 0 end
    return wait_until(edge(index + max(1, ceil((wanted - free) / limit)), period), now)
  end

  function law.take(now, cost)
    local index, count = seen(now)
    state[at], state[at + 1] = index, count + cost
  end

  function law.remaining(now)
    local _, count = seen(now)
    return max(0, limit - count)
  end

  function law.reset_after(now)
    local index, count = seen(now)
    if count == 0 then return 0 end
    return wait_until(edge(index + 1, period), now)
  end

  function law.refund(now, cost, instant)
    local index, count = seen(now)
    if count ~= 0 and floor(instant / period) == index then
      local left = count - cost
      state[at + 1] = left > rounding and left or 0
    end
  end

  return law
end

-- ---- SlidingWindow: the newest stretch of time, then a count for each, oldest first --------------

local function sliding_law(state, at, limit, width, rounding, buckets)
  local law = {size = 1 + buckets}
  state[at] = state[at] or -huge
  for place = at + 1, at + buckets do state[place] = state[place] or 0 end

  local function present(now) return max(state[at], floor(now / width)) end
  local function gone(now) return min(buckets, present(now) - state[at]) end

  local function counted(now)
    local counts = {}
    for place = gone(now) + 1, buckets do counts[#counts + 1] = state[at + place] end
    return fsum(counts, 1)
  end

  function law.delay(now, cost)
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

  function law.take(now, cost)
    local index, out = floor(now / width), gone(now)
    if index > state[at] then
      for place = 1, buckets do
        state[at + place] = place + out <= buckets and state[at + place + out] or 0
      end
      state[at] = index
    end
    state[at + buckets] = state[at + buckets] + cost
  end

  function law.remaining(now) return max(0, limit - counted(now)) end

  function law.reset_after(now)
    for age = 0, buckets - 1 do
      if state[at + buckets - age] ~= 0 then
        return wait_until(edge(state[at] - age + buckets, width), now)
      end
    end
    return 0
  end

  function law.refund(now, cost, instant)
    local place = floor(instant / width) - state[at] + buckets - 1
    if gone(now) <= place and place < buckets then
      local left = state[at + place + 1] - cost
      state[at + place + 1] = left > rounding and left or 0
    end
  end

  return law
end
