-- Appends a batch and replaces the checkpoint in one step, or changes nothing.
--
-- KEYS: the checkpoint, then the streams, then the dead stream where the batch
--       has an entry for it.
-- ARGV: the expected version, the new version, the new checkpoint, the maximal
--       length of a stream (0: never trim), the number of last ids to set, the
--       number of streams, the number of requests that are settled, then as many
--       pairs of stream name and id (empty: forget it), then the fields of the
--       requests, then the entries, in runs of the same stream and the same
--       names: index of the stream in KEYS, not counting the checkpoint, number
--       of entries, number of strings of an entry, names and values of the first
--       entry, then the values alone of each of the others.
-- Returns {1}: done; {0, checkpoint hash}: another version is there;
--         {2, stream}: a stream that had entries of this source is gone, or was
--         made anew.
--
-- Redis does not roll a script back. So all that can be known to fail is looked
-- at before the first write; the version is written before the entries, since a
-- command that is refused for want of memory, of a writable server or of
-- permission is refused at the first write; and an entry that is refused takes
-- everything back. What is written last, the document and the last ids, is
-- another write of the same command to the same key, so nothing is left to
-- refuse it. All judgement is the caller's.
--
-- Each stream is looked at before each write, also of a stamp: that it is there,
-- ends no earlier than the last entry of ours, and ever had as many entries as it
-- had then. It cannot be left to the stamps, which alone move what is confirmed:
-- entries that went onto a stream that was made anew would come before those that
-- a heal puts back, and their ids would replace the only ones that show, before
-- Redis 7, that it is another stream.

local call = redis.pcall
local checkpoint = KEYS[1]
local streams = tonumber(ARGV[6])
local last_ids = 8
local requests = last_ids + 2 * ARGV[5]
local entries = requests + ARGV[7]
local args = #ARGV

-- Each stream's fields of the checkpoint are at 2 * i and 2 * i + 1 in here, and
-- their values two places before that in what is held, i being its place in KEYS.
local wanted = { 'HMGET', checkpoint, 'version' }
for i = 2, 1 + streams do
  wanted[2 * i] = 'last:' .. KEYS[i]
  wanted[2 * i + 1] = 'added:' .. KEYS[i]
end
local held = call(unpack(wanted))
if held.err then
  return { err = held.err .. ' [while running HMGET]' }
end
if (held[1] or '') ~= ARGV[1] then
  local all = call('HGETALL', checkpoint)
  if all.err then
    return { err = all.err .. ' [while running HGETALL]' }
  end
  return { 0, all }
end

-- What is held of these streams does not count any more.
local given
if last_ids < requests then
  given = {}
  for i = last_ids, requests - 1, 2 do
    given[ARGV[i]] = ARGV[i + 1]
  end
end

local had = {} -- entries ever added to a stream; Redis 7 tells
for i = 2, 1 + streams do
  local stream = KEYS[i]
  local ours = held[2 * i - 2]
  local info = call('XINFO', 'STREAM', stream)
  if info.err then
    if not info.err:find('no such key', 1, true) then
      local kind = call('TYPE', stream)
      if kind.err or kind.ok == 'stream' or kind.ok == 'none' then
        return { err = info.err .. ' [while running XINFO]' }
      end
      return { err = 'WRONGTYPE the key ' .. stream .. ' holds a ' .. kind.ok .. ', not a stream' }
    end
    if ours and not (given and given[stream] == '') then
      return { 2, stream }
    end
    had[i] = 0
  else
    local last
    for j = 1, #info, 2 do
      local name = info[j]
      if name == 'last-generated-id' then
        last = info[j + 1]
      elseif name == 'entries-added' then
        had[i] = info[j + 1]
        break -- comes after it
      end
    end
    if ours and not (given and given[stream]) then
      if had[i] and had[i] < (held[2 * i - 1] or 0) + 0 then
        return { 2, stream }
      end
      if last ~= ours then -- whether it is below: of digits that no number here holds
        local am, as = last:match('^(%d+)-(%d+)$')
        local bm, bs = ours:match('^(%d+)-(%d+)$')
        if am == bm then
          am, bm = as, bs
        end
        if #am < #bm or (#am == #bm and am < bm) then
          return { 2, stream }
        end
      end
    end
  end
end
for i = 2 + streams, #KEYS do
  local kind = call('TYPE', KEYS[i])
  if kind.err then
    return { err = kind.err .. ' [while running TYPE]' }
  end
  if kind.ok ~= 'none' and kind.ok ~= 'stream' then
    return { err = 'WRONGTYPE the key ' .. KEYS[i] .. ' holds a ' .. kind.ok .. ', not a stream' }
  end
end

local written
if last_ids <= args then -- there is more to write
  written = call('HSET', checkpoint, 'version', ARGV[2])
else
  written = call('HSET', checkpoint, 'version', ARGV[2], 'checkpoint', ARGV[3])
end
if type(written) == 'table' then
  return { err = written.err .. ' [while running HSET]' }
elseif args < last_ids then
  return { 1 }
end

local added, n = {}, 0 -- streams and ids

local function take_back(reply, command)
  for i = 1, n, 2 do
    call('XDEL', added[i], added[i + 1])
  end
  if held[1] then
    redis.call('HSET', checkpoint, 'version', held[1])
  else
    redis.call('DEL', checkpoint)
  end
  return { err = reply.err .. ' [while running ' .. command .. ']' }
end

local last = {}
local trim = ARGV[4] ~= '0'
local at = entries
while at <= args do
  local i, count, strings = 1 + ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local stream = KEYS[i]
  local command
  at = at + 3
  if trim and i <= 1 + streams then
    command = { 'XADD', stream, 'MAXLEN', '~', ARGV[4], '*', unpack(ARGV, at, at + strings - 1) }
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
      return take_back(id, 'XADD')
    end
    added[n + 1], added[n + 2] = stream, id
    n = n + 2
  end
  if i <= 1 + streams then
    last[i] = added[n]
    had[i] = had[i] and had[i] + count
  end
end

for i = requests, entries - 1 do
  local settled = call('HDEL', checkpoint, ARGV[i])
  if type(settled) == 'table' then
    return take_back(settled, 'HDEL')
  end
end

local rest = { 'HSET', checkpoint, 'checkpoint', ARGV[3] }
local k = 4
for i = last_ids, requests - 1, 2 do
  local stream, id = ARGV[i], ARGV[i + 1]
  if id ~= '' then
    local number
    for j = 2, 1 + streams do
      if KEYS[j] == stream then
        number = had[j]
      end
    end
    rest[k + 1], rest[k + 2], rest[k + 3], rest[k + 4] = 'last:' .. stream, id, 'added:' .. stream, number or 0
    k = k + 4
  elseif held[1] then
    -- A checkpoint that is new has nothing to forget. One that is not can be
    -- taken back by the command that wrote it.
    local forgotten = call('HDEL', checkpoint, 'last:' .. stream, 'added:' .. stream)
    if type(forgotten) == 'table' then
      return take_back(forgotten, 'HDEL')
    end
  end
end
for i, id in pairs(last) do
  rest[k + 1], rest[k + 2], rest[k + 3], rest[k + 4] = wanted[2 * i], id, wanted[2 * i + 1], had[i] or 0
  k = k + 4
end
redis.call(unpack(rest))
return { 1 }
