-- Appends a batch and replaces the checkpoint in one step, or changes nothing.
--
-- KEYS: the checkpoint, then the streams, then the dead stream where the batch
--       has an entry for it.
-- ARGV: the expected version, the new version, the new checkpoint, the maximal
--       length of a stream (0: never trim), the number of last ids to set, the
--       number of streams, the number of requests that are settled, then as many
--       pairs of stream name and id (empty: forget it), then the fields of the
--       requests, then the entries: index of the stream in KEYS, number of
--       strings, names and values.
-- Returns {1}: done; {0, checkpoint hash}: another version is there;
--         {2, stream}: a stream that had entries of this source is gone, or was
--         made anew;
--         {3, text}: the entries are not taken, however often that is tried.
--
-- Redis does not roll a script back. So all that can be known to fail is looked
-- at before the first write; the checkpoint is written first, since a command
-- that is refused for want of memory, of a writable server or of permission is
-- refused at the first write; and an entry that is refused takes everything
-- back. All judgement is the caller's.

local function fail(reply, command)
  return { err = reply.err .. ' [while running ' .. command .. ']' }
end

local checkpoint = KEYS[1]
local streams = tonumber(ARGV[6])
local last_ids = 8
local requests = last_ids + 2 * tonumber(ARGV[5])
local entries = requests + tonumber(ARGV[7])

-- Lua's stack holds 8000 values; beyond that a script ends in the middle.
local most = 4000

-- Whether an id is below another: of digits that no number here holds.
local function below(a, b)
  local am, as = a:match('^(%d+)-(%d+)$')
  local bm, bs = b:match('^(%d+)-(%d+)$')
  if am ~= bm then
    return #am < #bm or (#am == #bm and am < bm)
  end
  return #as < #bs or (#as == #bs and as < bs)
end

local wanted = { 'HMGET', checkpoint, 'version', 'checkpoint' }
for i = 2, 1 + streams do
  wanted[#wanted + 1] = 'last:' .. KEYS[i]
  wanted[#wanted + 1] = 'added:' .. KEYS[i]
end
local held = redis.pcall(unpack(wanted))
if held.err then
  return fail(held, 'HMGET')
end
if (held[1] or '') ~= ARGV[1] then
  local all = redis.pcall('HGETALL', checkpoint)
  if all.err then
    return fail(all, 'HGETALL')
  end
  return { 0, all }
end

local given = {} -- what is held of these streams does not count any more
local forget = {}
for i = last_ids, requests - 1, 2 do
  given[ARGV[i]] = true
  if ARGV[i + 1] == '' then
    forget[ARGV[i]] = true
  end
end

local had = {} -- entries ever added to a stream; Redis 7 tells
for i = 2, #KEYS do
  local kind = redis.pcall('TYPE', KEYS[i])
  if kind.err then
    return fail(kind, 'TYPE')
  end
  if kind.ok == 'none' then
    had[KEYS[i]] = 0
    if i <= 1 + streams and held[2 * i - 1] and not forget[KEYS[i]] then
      return { 2, KEYS[i] }
    end
  elseif kind.ok ~= 'stream' then
    return { err = 'WRONGTYPE the key ' .. KEYS[i] .. ' holds a ' .. kind.ok .. ', not a stream' }
  elseif i <= 1 + streams then
    local info = redis.pcall('XINFO', 'STREAM', KEYS[i])
    if info.err then
      return fail(info, 'XINFO')
    end
    local last
    for j = 1, #info, 2 do
      if info[j] == 'last-generated-id' then
        last = info[j + 1]
      elseif info[j] == 'entries-added' then
        had[KEYS[i]] = info[j + 1]
      end
    end
    local ours, before = held[2 * i - 1], tonumber(held[2 * i] or '0')
    if ours and not given[KEYS[i]] and
      (below(last, ours) or (had[KEYS[i]] and had[KEYS[i]] < before)) then
      return { 2, KEYS[i] }
    end
  end
end

local at = entries
while at <= #ARGV do
  local strings = tonumber(ARGV[at + 1])
  if strings > most then
    return { 3, 'an entry has ' .. strings / 2 .. ' fields, and at most ' .. most / 2 .. ' can be appended' }
  end
  at = at + 2 + strings
end

local written = redis.pcall('HSET', checkpoint, 'version', ARGV[2], 'checkpoint', ARGV[3])
if type(written) == 'table' and written.err then
  return fail(written, 'HSET')
end

local added = {}
local last = {}

local function take_back()
  for _, entry in ipairs(added) do
    redis.pcall('XDEL', entry[1], entry[2])
  end
  if held[1] then
    redis.call('HSET', checkpoint, 'version', held[1], 'checkpoint', held[2])
  else
    redis.call('DEL', checkpoint)
  end
end

local trim = tonumber(ARGV[4]) > 0
at = entries
while at <= #ARGV do
  local index = tonumber(ARGV[at])
  local stream = KEYS[1 + index]
  local final = at + 1 + tonumber(ARGV[at + 1])
  local id
  if trim and index <= streams then
    id = redis.pcall('XADD', stream, 'MAXLEN', '~', ARGV[4], '*', unpack(ARGV, at + 2, final))
  else
    id = redis.pcall('XADD', stream, '*', unpack(ARGV, at + 2, final))
  end
  if type(id) == 'table' then
    take_back()
    return fail(id, 'XADD')
  end
  added[#added + 1] = { stream, id }
  if index <= streams then
    last[stream] = id
    had[stream] = had[stream] and had[stream] + 1
  end
  at = final + 1
end

for i = requests, entries - 1 do
  local settled = redis.pcall('HDEL', checkpoint, ARGV[i])
  if type(settled) == 'table' then
    take_back()
    return fail(settled, 'HDEL')
  end
end

for i = last_ids, requests - 1, 2 do
  if ARGV[i + 1] == '' then
    -- A checkpoint that is new has nothing to forget. One that is not can be
    -- taken back by the command that wrote it.
    if held[1] then
      local forgotten = redis.pcall('HDEL', checkpoint, 'last:' .. ARGV[i], 'added:' .. ARGV[i])
      if type(forgotten) == 'table' then
        take_back()
        return fail(forgotten, 'HDEL')
      end
    end
  else
    redis.call('HSET', checkpoint, 'last:' .. ARGV[i], ARGV[i + 1], 'added:' .. ARGV[i], had[ARGV[i]] or 0)
  end
end
for stream, id in pairs(last) do
  redis.call('HSET', checkpoint, 'last:' .. stream, id, 'added:' .. stream, had[stream] or 0)
end
return { 1 }
