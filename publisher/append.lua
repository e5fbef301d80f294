-- Appends a batch and replaces the checkpoint in one step, or changes nothing.
--
-- KEYS: the checkpoint, then the streams.
-- ARGV: the expected version, the new version, the new checkpoint, the maximal
--       length of a stream (0: never trim), the number of last ids to set, as
--       many pairs of stream name and id (empty: forget it), then the entries:
--       index of the stream in KEYS, number of strings, names and values.
-- Returns {1}: done; {0, checkpoint hash}: another version is there;
--         {2, stream}: a stream that had entries of this source is gone.
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

local wanted = { 'HMGET', checkpoint, 'version', 'checkpoint' }
for i = 2, #KEYS do
  wanted[#wanted + 1] = 'last:' .. KEYS[i]
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

local forget = {}
local next_arg = 6 + 2 * tonumber(ARGV[5])
for i = 6, next_arg - 1, 2 do
  if ARGV[i + 1] == '' then
    forget[ARGV[i]] = true
  end
end

for i = 2, #KEYS do
  local kind = redis.pcall('TYPE', KEYS[i])
  if kind.err then
    return fail(kind, 'TYPE')
  end
  if kind.ok == 'none' then
    if held[i + 1] and not forget[KEYS[i]] then
      return { 2, KEYS[i] }
    end
  elseif kind.ok ~= 'stream' then
    return { err = 'WRONGTYPE the key ' .. KEYS[i] .. ' holds a ' .. kind.ok .. ', not a stream' }
  end
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
while next_arg <= #ARGV do
  local stream = KEYS[1 + tonumber(ARGV[next_arg])]
  local final = next_arg + 1 + tonumber(ARGV[next_arg + 1])
  local id
  if trim then
    id = redis.pcall('XADD', stream, 'MAXLEN', '~', ARGV[4], '*', unpack(ARGV, next_arg + 2, final))
  else
    id = redis.pcall('XADD', stream, '*', unpack(ARGV, next_arg + 2, final))
  end
  if type(id) == 'table' then
    take_back()
    return fail(id, 'XADD')
  end
  added[#added + 1] = { stream, id }
  last[stream] = id
  next_arg = final + 1
end

for i = 6, 5 + 2 * tonumber(ARGV[5]), 2 do
  if ARGV[i + 1] == '' then
    -- A checkpoint that is new has nothing to forget. One that is not can be
    -- taken back by the command that wrote it.
    if held[1] then
      local forgotten = redis.pcall('HDEL', checkpoint, 'last:' .. ARGV[i])
      if type(forgotten) == 'table' then
        take_back()
        return fail(forgotten, 'HDEL')
      end
    end
  else
    redis.call('HSET', checkpoint, 'last:' .. ARGV[i], ARGV[i + 1])
  end
end
for stream, id in pairs(last) do
  redis.call('HSET', checkpoint, 'last:' .. stream, id)
end
return { 1 }
