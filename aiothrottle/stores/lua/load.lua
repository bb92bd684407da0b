-- Returns the bytes of a record in hexadecimal, as a client may decode replies, and the time.
-- KEYS: the record; a key of another type has no bytes, which is no record.

local data = redis.pcall('GET', KEYS[1])
if type(data) == 'table' then
  if not string.find(data.err, 'WRONGTYPE', 1, true) then return data end
  data = ''
end
if data then
  data = string.gsub(data, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
end
return {data, redis.call('TIME')}
