// Programs that lock themselves in: filters of system calls that refuse or kill, and other namespaces, which a program
// with one thread may enter. Each case prints "ok".
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t MiB = 1 << 20;

static int fails(const char *what) { return printf("%s: %s\n", what, strerror(errno)), 1; }

// Where `is_list_of_allowed`, all others get `otherwise`; else those in the list do.
static int filter(const int *calls, int count, int is_list_of_allowed, unsigned otherwise) {
  struct sock_filter code[64];
  int at = 0;
  code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < count; i++)
    code[at++] =
        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], (unsigned char)(count - i), 0);
  code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, is_list_of_allowed ? otherwise : SECCOMP_RET_ALLOW);
  code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, is_list_of_allowed ? SECCOMP_RET_ALLOW : otherwise);
  struct sock_fprog program = {(unsigned short)at, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

// As in Chromium's baseline policy.
static int chromium(void) {
  const unsigned flags = 0x01 | 0x02 | 0x10 | 0x20 | 0x800 | 0x2000 | 0x4000 | 0x20000;
  const unsigned at_flags = offsetof(struct seccomp_data, args) + 3 * 8, at_advice = offsetof(struct seccomp_data, args) + 2 * 8;
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at_flags),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, ~flags, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at_advice),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

// The compiler leaves out no block that others may see.
static void *volatile seen;

static int large(size_t bytes) {
  if (!(seen = malloc(bytes))) return fails("malloc");
  memset(seen, 1, bytes);
  free(seen);
  return 0;
}

static int work(void) {
  for (int round = 0; round < 3; round++) {
    for (size_t mib = 1; mib <= 64; mib *= 4) {
      char *p = malloc(mib * MiB), *z = calloc(1, mib * MiB);
      if (!p || !z) return fails("malloc");
      for (size_t i = 0; i < mib * MiB; i += 4096)
        if (z[i]) return printf("calloc gave bytes that are not zero\n"), 1;
      memset(p, 1, mib * MiB);
      memset(z, 2, mib * MiB);
      p = realloc(p, mib * MiB * 3);
      if (!p || p[mib * MiB - 1] != 1) return fails("realloc");
      free(p);
      free(z);
    }
    void *small[2000];
    for (int i = 0; i < 2000; i++)
      if (!(small[i] = malloc((size_t)(i * 17 % 5000 + 1)))) return fails("small blocks");
    for (int i = 0; i < 2000; i++) free(small[i]);
  }
  char *dropped = calloc(1, 300 * MiB);
  if (!dropped) return fails("calloc");
  dropped[5 * MiB] = 1;
  free(dropped);
  dropped = calloc(1, 300 * MiB);
  if (!dropped || dropped[5 * MiB]) return printf("calloc found what was there before\n"), 1;
  free(dropped);
  return 0;
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  int is_used = argc > 2;
  if (is_used && work()) return 1;
  if (!strcmp(name, "chromium") || !strcmp(name, "chromium-limited")) {
    // Chromium's rules for memory: flags of mmap that it does not know end the process, others get EPERM.
    struct rlimit limit = {(size_t)4 << 30, (size_t)4 << 30};
    if (!strcmp(name, "chromium-limited") && setrlimit(RLIMIT_AS, &limit)) return fails("setrlimit");
    if (chromium()) return fails("seccomp");
    if (work()) return 1;
    usleep(1200 * 1000);
    if (work()) return 1;
  } else if (!strcmp(name, "docker") || !strcmp(name, "systemd")) {
    // What Docker's default profile and systemd's @system-service leave out, of what an allocator might call.
    const int calls[] = {SYS_mbind, SYS_get_mempolicy, SYS_set_mempolicy, SYS_unshare, SYS_setns, SYS_process_vm_readv,
                         SYS_process_vm_writev, SYS_userfaultfd, SYS_perf_event_open, SYS_bpf, SYS_kcmp, SYS_ptrace};
    unsigned error = !strcmp(name, "docker") ? EPERM : ENOSYS;
    if (filter(calls, 12, 0, SECCOMP_RET_ERRNO | error)) return fails("seccomp");
    if (work()) return 1;
    execl("/proc/self/exe", argv[0], "inherited", NULL);
    return fails("exec");
  } else if (!strcmp(name, "inherited")) {
    // The filter was there before the program.
    if (work()) return 1;
  } else if (!strcmp(name, "refused")) {
    const int calls[] = {SYS_madvise, SYS_memfd_create, SYS_mremap, SYS_openat, SYS_open, SYS_clone, SYS_clone3,
                         SYS_getcpu, SYS_process_vm_readv, SYS_mbind, SYS_sched_getaffinity};
    if (filter(calls, 11, 0, SECCOMP_RET_ERRNO | EPERM)) return fails("seccomp");
    if (work()) return 1;
  } else if (!strcmp(name, "killed")) {
    // What glibc's malloc and this program need, and nothing else.
    const int calls[] = {SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_futex,
                         SYS_write, SYS_read, SYS_exit, SYS_exit_group, SYS_newfstatat, SYS_fstat, SYS_rt_sigreturn,
                         SYS_getrandom, SYS_clock_nanosleep, SYS_nanosleep};
    if (filter(calls, 17, 1, SECCOMP_RET_KILL_PROCESS)) return fails("seccomp");
    if (work()) return 1;
    usleep(1200 * 1000);
    if (work()) return 1;
  } else if (!strcmp(name, "namespaces")) {
    // A program with one thread may enter a namespace of users; one with several may not. The kernel counts a thread
    // for a moment after its end was told: only many tries meet that moment.
    for (int turn = 0; turn < 200; turn++) {
      pid_t pid = fork();
      if (pid == 0) {
        if (turn == 0 ? work() : large(20 * MiB)) _exit(1);
        if (unshare(CLONE_NEWUSER)) _exit(3);
        _exit(turn == 0 ? work() : 0);
      }
      int status;
      waitpid(pid, &status, 0);
      if (status) return printf("child %d ended with %x\n", turn, status), 1;
    }
    if (work()) return 1;
    int own = open("/proc/self/ns/mnt", O_RDONLY);
    if (unshare(CLONE_NEWNS | CLONE_FS)) return fails("unshare");
    if (work()) return 1;
    if (setns(own, CLONE_NEWNS)) return fails("setns");
    if (work()) return 1;
  } else {
    return 2;
  }
  puts("ok");
  fflush(stdout);
  _exit(0);
}
