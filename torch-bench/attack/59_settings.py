"""Settings of torch's allocator in the environment and at run time are taken or refused as torch does, and change no
bytes."""
import os
import subprocess
import sys

if len(sys.argv) == 1:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = (
        "max_split_size_mb:64,garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    )
from common import *

g = start(limit=2 * GIB)
r, kept, mistakes, problems = rng(59), [], 0, []
put = torch._C._accelerator_setAllocatorSettings
settings = ["garbage_collection_threshold:0.5", "max_split_size_mb:21", "roundup_power2_divisions:4",
            "expandable_segments:True",
            "max_split_size_mb:512,roundup_power2_divisions:16", "expandable_segments:False"]
for step in range(600):
    if step % 60 == 0 and len(sys.argv) == 1:
        try:
            put(settings[step // 60 % len(settings)])
        except RuntimeError as error:
            problems.append(f"{settings[step // 60 % len(settings)]}: {str(error).splitlines()[0][:100]}")
    mark = r.randrange(1 << 18)
    kept.append((fill(ints(log_uniform(r, 512, 90 * MIB)), mark), mark))
    if len(kept) > 12:
        x, mark = kept.pop(r.randrange(12))
        mistakes += int(wrong(x, mark))
        del x
    if step % 97 == 0:
        torch.cuda.empty_cache()
for text in ("no_such_thing:1", "garbage_collection_threshold:7"):
    try:
        put(text)
        problems.append(f"{text} was taken")
    except (RuntimeError, ValueError):
        pass
mistakes += sum(int(wrong(x, mark)) for x, mark in kept)
problems += adds_up()
if len(sys.argv) == 1:
    # The same if the environment names expandable segments.
    env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    child = subprocess.run([sys.executable, "-W", "ignore", os.path.abspath(__file__), "child"], env=env, timeout=60,
                           capture_output=True, text=True)
    if child.returncode != 0:
        problems.append(f"with expandable_segments: {(child.stdout + child.stderr).strip().splitlines()[-1][:160]}")
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"600 steps, {mistakes} wrong elements")
