-- Appends entries to a stream in one step, or nothing: for a poller, which keeps
-- no checkpoint.
--
-- KEYS: the stream.
-- ARGV: its maximal length (0: never trim), then the entries: number of strings,
--       names and values.
-- Returns {1}: done; {3, text}: the entries are not taken, however often that is
--         tried.
--
-- As in append.lua: what can be known to fail is looked at before the first
-- write, and an entry that is refused takes everything back.

local function fail(reply, command)
  return { err = reply.err .. ' [while running ' .. command .. ']' }
end

local stream = KEYS[1]

-- Lua's stack holds 8000 values; beyond that a script ends in the middle.
local most = 4000

local kind = redis.pcall('TYPE', stream)
if kind.err then
  return fail(kind, 'TYPE')
end
if kind.ok ~= 'none' and kind.ok ~= 'stream' then
  return { err = 'WRONGTYPE the key ' .. stream .. ' holds a ' .. kind.ok .. ', not a stream' }
end

local at = 2
while at <= #ARGV do
  local strings = tonumber(ARGV[at])
  if strings > most then
    return { 3, 'an entry has ' .. strings / 2 .. ' fields, and at most ' .. most / 2 .. ' can be appended' }
  end
  at = at + 1 + strings
end

local added = {}
at = 2
while at <= #ARGV do
  local final = at + tonumber(ARGV[at])
  local id
  if tonumber(ARGV[1]) > 0 then
    id = redis.pcall('XADD', stream, 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, at + 1, final))
  else
    id = redis.pcall('XADD', stream, '*', unpack(ARGV, at + 1, final))
  end
  if type(id) == 'table' then
    for _, one in ipairs(added) do
      redis.pcall('XDEL', stream, one)
    end
    return fail(id, 'XADD')
  end
  added[#added + 1] = id
  at = final + 1
end
return { 1 }
