"""A daemon closes every file that it did not open itself after its imports and before CUDA starts, then opens its own,
which get those numbers, and changes its folder to one that is deleted: nothing writes to, reads from or closes the
program's files, and memory works, fails and is shared as usual."""
import hashlib
import subprocess
import sys
import tempfile

from common import *

faulthandler.cancel_dump_traceback_later()
if not NATIVE:
    import gapless

    if not gapless.enable(limit="1GiB", oom_dir="off"):
        done(False, gapless.disable_reason())
problems, r = [], rng(166)
os.closerange(3, 512)
folder = tempfile.mkdtemp()
os.chdir(folder)
files = []
for number in range(60):
    file = os.open(os.path.join(folder, str(number)), os.O_RDWR | os.O_CREAT)
    os.write(file, hashlib.sha256(str(number).encode()).digest())
    files.append(file)
pipes = [os.pipe() for _ in range(10)]
for _, write in pipes:
    os.write(write, b"mine")
for number in range(60):
    os.unlink(str(number))
os.rmdir(folder)
torch.cuda.init()
if NATIVE:
    torch.cuda.set_per_process_memory_fraction(min(1.0, GIB / torch.cuda.get_device_properties(0).total_memory))
side, kept = torch.cuda.Stream(), []
for step in range(300):
    with torch.cuda.stream(side if step % 3 == 0 else torch.cuda.current_stream()):
        kept.append(torch.empty(log_uniform(r, 512, 30 * MIB), dtype=torch.uint8, device="cuda"))
    if len(kept) > 10:
        kept.pop(r.randrange(10))
    if step % 60 == 30:
        torch.cuda.empty_cache()
    if step % 90 == 80:
        try:
            torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
            problems.append("4 GiB were served")
        except torch.OutOfMemoryError:
            pass
    if step % 100 == 50:
        kept[-1].untyped_storage()._share_cuda_()
for number, file in enumerate(files):
    os.lseek(file, 0, os.SEEK_SET)
    if os.read(file, 4096) != hashlib.sha256(str(number).encode()).digest():
        problems.append(f"file {number} has other bytes")
for number, (read, write) in enumerate(pipes):
    os.set_blocking(read, False)
    if os.read(read, 4096) != b"mine":
        problems.append(f"pipe {number} has other bytes")
# The next file gets a number that the program has closed, so Gapless must not close it a second time.
for file in files:
    os.close(file)
fresh = [os.open("/dev/null", os.O_RDWR) for _ in range(60)]
del kept
torch.cuda.empty_cache()
torch.cuda.ipc_collect()
for file in fresh:
    try:
        os.fstat(file)
    except OSError:
        problems.append(f"file {file} was closed by somebody else")
problems += adds_up()
done(not problems, f"{len(problems)}: " + "; ".join(problems[:3]) if problems else "70 files of the program's own")
