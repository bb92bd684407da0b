-- What is there, and the time.  KEYS: the record.

return {redis.call('GET', KEYS[1]), redis.call('TIME')}
