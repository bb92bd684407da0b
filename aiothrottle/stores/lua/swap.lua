-- Compare and swap: for the laws that laws.lua does not know.
-- KEYS: the record.  ARGV: what has to be there ('' for nothing), what is to be ('' for nothing),
-- milliseconds.

local there = redis.call('GET', KEYS[1]) or ''
if there ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
