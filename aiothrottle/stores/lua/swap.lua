-- Compare and swap: for the algorithms that algorithms.lua does not know.
-- KEYS: the record, a mark that this request was done
-- ARGV: the expected bytes ('' for none), the new bytes ('' for none), milliseconds until those
--       expire, and until the mark does

if redis.call('GET', KEYS[2]) then return 1 end  -- a retry of the driver
local there = redis.pcall('GET', KEYS[1]) or ''
if type(there) == 'table' then  -- of another type: as load.lua has it
  if not string.find(there.err, 'WRONGTYPE', 1, true) then return there end
  there = ''
end
if there ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
redis.call('SET', KEYS[2], '', 'PX', ARGV[4])
return 1
