-- KEYS: stream. ARGV: group, name of the caller, idle time in ms. Returns the names that were removed.
local reaped = {}
for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
    local worker = {}
    for i = 1, #fields, 2 do
        worker[fields[i]] = fields[i + 1]
    end
    if worker.pending == 0 and worker.idle > tonumber(ARGV[3]) and worker.name ~= ARGV[2] then
        redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], worker.name)
        table.insert(reaped, worker.name)
    end
end
return reaped
