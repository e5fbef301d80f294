-- Reads what Redis tells of a stream and of its consumer groups, and changes
-- nothing.
--
-- KEYS: the stream.
-- ARGV: 1 to read the groups, too.
-- Returns {}: there is no stream; else {length, last id} and, where they were
--         asked for, the groups as XINFO GROUPS lists them, or the text of the
--         error.
--
-- XINFO STREAM answers with the first and the last entry, which may be of
-- megabytes. So it is asked here, and they stay here.

local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if info.err then
  if info.err:find('no such key', 1, true) then
    return {}
  end
  return { err = info.err .. ' [while running XINFO STREAM]' }
end

local of = {}
for i = 1, #info, 2 do
  of[info[i]] = info[i + 1]
end
local found = { of['length'], of['last-generated-id'] }
if ARGV[1] == '1' then
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
  found[3] = groups.err or groups
end
return found
