-- Turns `--gres=gmem:18G` into shards of a GPU for every job, whoever submits it. Slurm's plug-in job_submit/lua runs
-- this in the controller before a job is queued. gapless_gmem.lua lies beside it.

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local gmem = dofile(here .. "gapless_gmem.lua")

-- What is wrong with the job's requests, or nil; memory becomes shards.
local function translate(job)
    for _, field in ipairs({ "tres_per_job", "tres_per_task", "tres_per_socket" }) do
        if job[field] and job[field]:find("gmem", 1, true) then
            return "gmem is asked for with --gres alone: --gres=gmem:18G"
        end
    end
    local list = job.tres_per_node
    if list and list:find("gmem", 1, true) then
        local shards, wrong = gmem.in_shards(list)
        if not shards then
            return wrong
        end
        job.tres_per_node = shards
    end
    return nil
end

function slurm_job_submit(job, _, _)
    local wrong = translate(job)
    if wrong then
        slurm.log_user("gapless: %s", wrong)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, _, _, _)
    return slurm_job_submit(job)
end

return slurm.SUCCESS
