-- Moves a connector's offset. Runs as the last command of the transaction that added the entries,
-- or alone when there is no entry.
--
-- KEYS  1 offset (a stream of one record)   2 ledger   3.. streams that got entries
-- ARGV  1 id of the record   2 ledger length, 0 for no ledger line
--       then first and last entry id for each stream ('' where Redis made the ids)
--       then field, value, ..
--
-- A command that fails while a transaction runs does not undo the others: so this looks for the
-- entries before it covers them with an offset.
local id, ledger_length = ARGV[1], tonumber(ARGV[2])
local arg = 3
for i = 3, #KEYS do
  local first, last = ARGV[arg], ARGV[arg + 1]
  arg = arg + 2
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind ~= 'stream' then
    return redis.error_reply('OUTFLOWABSENT ' .. KEYS[i] .. ' is a ' .. kind)
  end
  if first ~= '' then
    if #redis.call('XRANGE', KEYS[i], first, first) == 0 then
      return redis.error_reply('OUTFLOWABSENT ' .. KEYS[i] .. ' has no entry ' .. first)
    end
    if #redis.call('XRANGE', KEYS[i], last, last) == 0 then
      return redis.error_reply('OUTFLOWABSENT ' .. KEYS[i] .. ' has no entry ' .. last)
    end
  end
end

local fields = {}
for i = arg, #ARGV do fields[#fields + 1] = ARGV[i] end

-- Redis refuses an id that is not above the last one: an offset never goes back
local saved = redis.pcall('XADD', KEYS[1], 'MAXLEN', '=', 1, id, unpack(fields))
if type(saved) == 'table' and saved['err'] then
  local tip = redis.pcall('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
  if tip['err'] or #tip == 0 then return saved end
  if tip[1][1] == id then return 'SAME' end
  return redis.error_reply('OUTFLOWAHEAD ' .. tip[1][1])
end
if ledger_length > 0 then
  -- the ledger is history: losing a line of it must not hold up the offset
  redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', ledger_length, id, unpack(fields))
end
return 'SAVED'
