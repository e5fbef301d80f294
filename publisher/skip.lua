-- Asks for rows to be skipped, if the checkpoint is the expected one, which says
-- that the line stops at one of them.
--
-- KEYS: the checkpoint. ARGV: the expected version, the time, then the fields of
--       the requests.
-- Returns 1 when the requests are there, 0 over another checkpoint, or none.

if redis.call('HMGET', KEYS[1], 'version')[1] ~= ARGV[1] then
  return 0
end
for i = 3, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[2])
end
return 1
