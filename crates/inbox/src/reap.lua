-- KEYS: stream. ARGV: group, name of the caller, idle time in ms, how the names of its earlier processes begin.
-- Returns the names that were removed.
local reaped = {}
for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
    local worker = {}
    for i = 1, #fields, 2 do
        worker[fields[i]] = fields[i + 1]
    end
    local earlier = string.sub(worker.name, 1, #ARGV[4]) == ARGV[4]
    local stale = worker.idle > tonumber(ARGV[3])
    if worker.pending == 0 and worker.name ~= ARGV[2] and (earlier or stale) then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], worker.name)
        table.insert(reaped, worker.name)
    end
end
return reaped
