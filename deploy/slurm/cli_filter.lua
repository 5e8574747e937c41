-- Turns `--gres=gmem:18G` into shards of a GPU before salloc, sbatch or srun sends it. Without this a step of srun
-- would ask for gmem, which its job has turned into shards. Slurm's plug-in cli_filter/lua runs it. gapless_gmem.lua
-- lies beside it.

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
local gmem = dofile(here .. "gapless_gmem.lua")

function slurm_cli_setup_defaults(_, _)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, _)
    local list = options["gres"]
    if list and list:find("gmem", 1, true) then
        local shards, wrong = gmem.in_shards(list)
        if not shards then
            slurm.log_error("gapless: %s", wrong)
            return slurm.ERROR
        end
        options["gres"] = shards
    end
    return slurm.SUCCESS
end

function slurm_cli_post_submit(_, _, _)
    return slurm.SUCCESS
end

return slurm.SUCCESS
