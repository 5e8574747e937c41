#!/bin/sh
# Slurm runs this before each task (TaskProlog in slurm.conf) and puts the lines that begin with `export` into the
# task's environment. A task with shards of a GPU becomes a tenant of Gapless: it gets the bytes that its shards stand
# for, and not more. Set this to SHARD_MIB of gapless_gmem.lua.
SHARD_MIB=1024

case "${SLURM_SHARDS_ON_NODE:-}" in
'' | *[!0-9]*) exit 0 ;;
esac
echo "export GAPLESS_TENANT=slurm-${SLURM_JOB_ID}:$((SLURM_SHARDS_ON_NODE * SHARD_MIB))MiB"
