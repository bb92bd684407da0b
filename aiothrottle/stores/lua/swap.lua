-- Compare and swap: for the algorithms that algorithms.lua does not know.
-- KEYS: the record, that this request was done.  ARGV: what has to be there ('' for nothing), what is
-- to be ('' for nothing), milliseconds for which it is, and for which it is known that it was done.

if redis.call('GET', KEYS[2]) then return 1 end  -- the driver has sent it again
local there = redis.call('GET', KEYS[1]) or ''
if there ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
redis.call('SET', KEYS[2], '', 'PX', ARGV[4])
return 1
