-- Returns the bytes of a record in hexadecimal, as a client may decode replies, and the time.
-- KEYS: the record.

local data = redis.call('GET', KEYS[1])
if data then
  data = string.gsub(data, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
end
return {data, redis.call('TIME')}
