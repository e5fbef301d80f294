-- Asks for rows to be skipped, where there is a checkpoint: the request alone
-- would look like one that cannot be read.
--
-- KEYS: the checkpoint. ARGV: the time, then the fields of the requests.
-- Returns 1 when the requests are there, 0 without a checkpoint.

local version = redis.call('HMGET', KEYS[1], 'version')[1]
if not version then
  return 0
end
for i = 2, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[1])
end
return 1
