-- Arithmetic on doubles as Python does it (aiothrottle/algorithms/protocol.py, math.fsum), to the
-- last bit: algorithms.lua and record.lua follow, in the same script.

local floor, ceil, abs, huge = math.floor, math.ceil, math.abs, math.huge

-- Raised by whatever finds a number that no store has written.
local DAMAGED = 'damaged'
local function damage() error(DAMAGED, 0) end

local LATEST = 1e10  -- as in algorithms/protocol.py
local MOST = 2 ^ 53  -- as in dumps.py

local function max(a, b) if a >= b then return a else return b end end
local function min(a, b) if a <= b then return a else return b end end

local function ulp(x)
  local _, exponent = math.frexp(x)
  return max(math.ldexp(1, exponent - 53), 4.9406564584124654e-324)
end

local function above(x)
  local step = ulp(x)
  -- Below a power of two, and so above a negative one, numbers lie twice as close.
  if x < 0 and math.frexp(x) == -0.5 then step = step / 2 end
  return x + step
end

-- Seconds from `now` to `instant`; `now` plus them never falls short of it.
local function wait_until(instant, now)
  local delay = instant - now
  if delay <= 0 then return 0 end
  while now + delay < instant do delay = delay + ulp(abs(now) + delay) end
  return delay
end

-- The first instant of a period of that width.
local function edge(index, width)
  local instant = index * width
  while floor(instant / width) < index do instant = above(instant) end
  return instant
end

-- The sum of counts[first..], exact but for one rounding: Python's math.fsum.
local function fsum(counts, first)
  local parts, n = {}, 0
  for place = first, #counts do
    local x, kept = counts[place], 0
    for i = 1, n do
      local y = parts[i]
      if abs(x) < abs(y) then x, y = y, x end
      local high = x + y
      local low = y - (high - x)
      if low ~= 0 then
        kept = kept + 1
        parts[kept] = low
      end
      x = high
    end
    n = kept + 1
    parts[n] = x
  end
  if n == 0 then return 0 end
  local high, low = parts[n], 0
  while n > 1 do
    n = n - 1
    local x, y = high, parts[n]
    high = x + y
    low = y - (high - x)
    if low ~= 0 then break end
  end
  -- Half way between two doubles, the remainder decides.
  if n > 1 and ((low < 0 and parts[n - 1] < 0) or (low > 0 and parts[n - 1] > 0)) then
    local y = low * 2
    local x = high + y
    if y == x - high then high = x end
  end
  return high
end

-- Whether a record may have that timestamp; -huge is that of one which is unused.
local function is_time(number)
  return number == -huge or (-LATEST <= number and number <= LATEST)
end

local function is_amount(number) return 0 <= number and number <= MOST end
