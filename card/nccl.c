/* NCCL: every collective is done at once. A communicator knows its size and rank, so that several processes, one a
 * rank, run a program as it stands. The ranks are taken to tell each other the same: if the host has just copied data
 * to the card (echo.h), a gathered buffer holds it once for each rank. NCCL's own buffers are not torch's and are not
 * counted. */

#include "answers.h"
#include "echo.h"
#include <string.h>

enum { ID_SIZE = 128 };
typedef struct { char bytes[ID_SIZE]; } unique_id;
typedef struct { int ranks, rank; } communicator;

int ncclGetVersion(int *out) { *out = 22809; return 0; }
const char *ncclGetErrorString(int error) { return error ? "error" : "no error"; }
const char *ncclGetLastError(void *comm) { (void)comm; return ""; }
int ncclGetUniqueId(unique_id *out) {
    memset(out, 0, sizeof *out);
    out->bytes[0] = 1;
    return 0;
}

static int join(void **out, int ranks, int rank) {
    communicator *made = calloc(1, sizeof *made);
    if (!made) device_unexpected("no host memory");
    *made = (communicator){ranks, rank};
    *out = made;
    return 0;
}
int ncclCommInitRank(void **out, int ranks, unique_id id, int rank) { (void)id; return join(out, ranks, rank); }
int ncclCommInitRankConfig(void **out, int ranks, unique_id id, int rank, void *config) { (void)id; (void)config; return join(out, ranks, rank); }
int ncclCommInitRankScalable(void **out, int ranks, int rank, int count, unique_id *ids, void *config) {
    (void)count; (void)ids; (void)config;
    return join(out, ranks, rank);
}
int ncclCommInitAll(void **out, int count, const int *devices) {
    (void)devices;
    for (int i = 0; i < count; i++) join(&out[i], count, i);
    return 0;
}
/* Only the caller knows the sizes of the parts, so a part is taken to have all ranks of its parent. */
int ncclCommSplit(const communicator *parent, int color, int key, void **out, void *config) {
    (void)key; (void)config;
    *out = NULL;
    return color < 0 ? 0 : join(out, parent->ranks, parent->rank);
}
/* Ranks that are there already pass -1 and keep their number; new ones have no communicator yet. */
int ncclCommGrow(const communicator *old, int ranks, const unique_id *id, int rank, void **out, void *config) {
    (void)id; (void)config;
    return join(out, ranks, old && rank < 0 ? old->rank : rank);
}
int ncclCommGetUniqueId(const communicator *comm, unique_id *out) { (void)comm; return ncclGetUniqueId(out); }
int ncclCommDestroy(void *comm) { free(comm); return 0; }
int ncclCommAbort(void *comm) { free(comm); return 0; }
int ncclCommCount(const communicator *comm, int *out) { *out = comm->ranks; return 0; }
int ncclCommUserRank(const communicator *comm, int *out) { *out = comm->rank; return 0; }
int ncclCommCuDevice(const communicator *comm, int *out) { (void)comm; *out = 0; return 0; }
int ncclCommGetAsyncError(void *comm, int *out) { (void)comm; *out = 0; return 0; }
int ncclCommRegister(void *comm, void *buffer, size_t size, void **handle) { (void)comm; (void)size; *handle = buffer; return 0; }
int ncclRedOpCreatePreMulSum(int *out, void *scalar, int type, int where, void *comm) {
    (void)scalar; (void)type; (void)where; (void)comm;
    *out = 5;
    return 0;
}

/* ncclDataType_t: bytes of an element. */
static size_t width(int type) { return type <= 1 || type >= 10 ? 1 : type == 2 || type == 3 || type == 7 ? 4 : type == 6 || type == 9 ? 2 : 8; }

int ncclAllGather(const char *from, char *to, size_t elements, int type, const communicator *comm, void *stream) {
    (void)stream;
    size_t size = elements * width(type);
    for (int rank = 0; rank < comm->ranks; rank++) echo_move(to + (size_t)rank * size, from, size);
    return 0;
}
int ncclGather(const char *from, char *to, size_t elements, int type, int root, const communicator *comm, void *stream) {
    return comm->rank == root ? ncclAllGather(from, to, elements, type, comm, stream) : 0;
}

/* ---- groups: their broadcasts happen together, at the end of the outermost one ---- */

typedef struct { const communicator *comm; const char *from; char *to; size_t size; int root; } broadcast;
static __thread struct { int depth; size_t count, room; broadcast *calls; } group;

/* The call of this rank that stands where `call` stands among those of its root; NULL if this rank has none. */
static const broadcast *own_of(const broadcast *call) {
    size_t before = 0;
    for (const broadcast *at = group.calls; at < call; at++) before += at->comm == call->comm && at->root == call->root;
    for (const broadcast *at = group.calls; at < group.calls + group.count; at++) {
        if (at->comm == call->comm && at->root == call->comm->rank && before-- == 0) return at;
    }
    return NULL;
}

/* torch 2.15 gathers by one broadcast from each rank in a group, and a rank passes its own data only for its own
 * broadcast. The data of another rank is taken to be the same; data of another size is not known. In a group without a
 * broadcast of its own, a rank keeps the contents of its buffer. */
static const char *sent_by_root(const broadcast *call) {
    const broadcast *own = call->root == call->comm->rank ? call : own_of(call);
    return !own ? call->from : own->size == call->size ? own->from : NULL;
}

int ncclBroadcast(const char *from, char *to, size_t elements, int type, int root, const communicator *comm, void *stream) {
    (void)stream;
    size_t size = elements * width(type);
    if (!group.depth) {
        echo_move(to, from, size);
        return 0;
    }
    if (group.count == group.room) {
        group.room = group.room ? 2 * group.room : 16;
        group.calls = realloc(group.calls, group.room * sizeof *group.calls);
        if (!group.calls) device_unexpected("no host memory");
    }
    group.calls[group.count++] = (broadcast){comm, from, to, size, root};
    return 0;
}
int ncclGroupStart(void) { group.depth += 1; return 0; }
int ncclGroupEnd(void) {
    enum { INVALID_USAGE = 5 };
    if (!group.depth) return INVALID_USAGE;
    if (--group.depth) return 0;
    for (size_t i = 0; i < group.count; i++) echo_move(group.calls[i].to, sent_by_root(&group.calls[i]), group.calls[i].size);
    free(group.calls);
    memset(&group, 0, sizeof group);
    return 0;
}

DOES_NOTHING(ncclAllReduce) DOES_NOTHING(ncclAlltoAll) DOES_NOTHING(ncclBcast) DOES_NOTHING(ncclCommDeregister)
DOES_NOTHING(ncclCommFinalize) DOES_NOTHING(ncclRecv) DOES_NOTHING(ncclRedOpDestroy) DOES_NOTHING(ncclReduce)
DOES_NOTHING(ncclReduceScatter) DOES_NOTHING(ncclSend)
/* These give back NCCL's own memory and take it again, or stop running collectives: no memory of torch's. */
DOES_NOTHING(ncclCommResume) DOES_NOTHING(ncclCommRevoke) DOES_NOTHING(ncclCommSuspend)

/* Memory that NCCL hands out, and windows on it: not measured. */
NOT_KNOWN(ncclCommShrink) NOT_KNOWN(ncclCommWindowDeregister) NOT_KNOWN(ncclCommWindowRegister) NOT_KNOWN(ncclDevCommCreate)
NOT_KNOWN(ncclDevCommDestroy) NOT_KNOWN(ncclGroupSimulateEnd) NOT_KNOWN(ncclMemAlloc) NOT_KNOWN(ncclMemFree)
NOT_KNOWN(ncclCommMemStats) NOT_KNOWN(ncclGetLsaMultimemDevicePointer) NOT_KNOWN(ncclGetPeerDevicePointer)
NOT_KNOWN(ncclPutSignal) NOT_KNOWN(ncclSignal) NOT_KNOWN(ncclWaitSignal) NOT_KNOWN(ncclWinGetUserPtr)
