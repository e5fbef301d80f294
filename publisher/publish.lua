-- Appends entries to a stream in one step, or nothing: for a poller, which keeps
-- no checkpoint.
--
-- KEYS: the stream.
-- ARGV: its maximal length (0: never trim), then the entries in runs of the same
--       names, as in append.lua: index of the stream in KEYS, number of entries,
--       number of strings of an entry, names and values of the first entry, then
--       the values alone of each of the others.
-- Returns {1}: done.
--
-- As in append.lua: what can be known to fail is looked at before the first
-- write, and an entry that is refused takes everything back.

local function fail(reply, command)
  return { err = reply.err .. ' [while running ' .. command .. ']' }
end

local call = redis.pcall
local stream = KEYS[1]

local kind = call('TYPE', stream)
if kind.err then
  return fail(kind, 'TYPE')
end
if kind.ok ~= 'none' and kind.ok ~= 'stream' then
  return { err = 'WRONGTYPE the key ' .. stream .. ' holds a ' .. kind.ok .. ', not a stream' }
end

local added, n = {}, 0
local trim = ARGV[1] ~= '0'
local at, args = 2, #ARGV
while at <= args do
  local count, strings = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local command
  at = at + 3
  if trim then
    command = { 'XADD', stream, 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, at, at + strings - 1) }
  else
    command = { 'XADD', stream, '*', unpack(ARGV, at, at + strings - 1) }
  end
  at = at + strings
  local size = #command
  local first = size - strings + 2 -- the place of the first value
  for entry = 1, count do
    if entry > 1 then
      for j = first, size, 2 do
        command[j] = ARGV[at]
        at = at + 1
      end
    end
    local id = call(unpack(command, 1, size))
    if type(id) == 'table' then
      for i = 1, n do
        call('XDEL', stream, added[i])
      end
      return fail(id, 'XADD')
    end
    n = n + 1
    added[n] = id
  end
end
return { 1 }
