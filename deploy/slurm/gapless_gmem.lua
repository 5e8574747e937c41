-- GPU memory for Slurm: `--gres=gmem:18G` becomes shards of one GPU.
--
-- A shard (gres/shard) stands for a fixed number of bytes of a GPU. Slurm gives a job shards of one GPU on each node,
-- and counts them. job_submit.lua asks this file for every job, cli_filter.lua for every command, so that the steps of
-- a job name the same thing as the job.
--
-- Set these two to what gres.conf says. Both are in MiB.
local SHARD_MIB = 1024            -- what one shard stands for: 1 GiB
local LARGEST_GPU_MIB = 141 * 1024 -- the largest GPU of the cluster

local UNITS = { K = 1 / 1024, M = 1, G = 1024, T = 1024 * 1024 }

-- The MiB that a text such as 18G or 18GiB means, or nil.
local function mib(text)
    local number, unit = text:match("^(%d+)([KMGT])i?B?$")
    if not number or #number > 12 then
        return nil
    end
    return tonumber(number) * UNITS[unit]
end

-- One request of a list: its name, type and count ("" where there is none). Slurm writes gres:NAME[:TYPE]:COUNT.
local function parts(request)
    local words = {}
    for word in (request:gsub("^gres[:/]", "") .. ":"):gmatch("([^:]*):") do
        words[#words + 1] = word
    end
    if #words >= 3 then
        return words[1], words[2], words[3]
    end
    return words[1] or "", "", words[2] or ""
end

-- The list with memory turned into shards; or nil and what is wrong. The same list where no memory is asked for.
local function in_shards(list)
    local out, memory, whole = {}, 0, nil
    for request in list:gmatch("[^,]+") do
        local name, kind, count = parts(request)
        if name == "gmem" then
            memory = memory + 1
            local size = mib(count)
            if not size or size <= 0 then
                return nil, "invalid size in gmem:" .. count .. ": give a whole number and a unit, as in --gres=gmem:18G"
            end
            if size > LARGEST_GPU_MIB then
                return nil, string.format("gmem:%s is more than the largest GPU has, %d MiB", count, LARGEST_GPU_MIB)
            end
            local shards = math.ceil(size / SHARD_MIB)
            local of = kind ~= "" and (kind .. ":") or ""
            out[#out + 1] = string.format("gres:shard:%s%d", of, shards)
        else
            if name == "gpu" or name == "shard" or name == "mps" then
                whole = name
            end
            out[#out + 1] = request
        end
    end
    if memory > 1 then
        return nil, "gmem is asked for twice: a job gets memory of one GPU on each node"
    end
    if memory == 1 and whole then
        return nil, "gmem and " .. whole .. " are asked for together: a job shares a GPU or has GPUs of its own"
    end
    return table.concat(out, ",")
end

-- The list of a request in shards, or nil and what is wrong.
return { in_shards = in_shards }
