// Drives the caching allocator of a stock libc10_cuda.so over the stand-in device: operations from stdin, answers to
// stdout.
//
//   driver CAPACITY [history]         settings of the allocator come from PYTORCH_CUDA_ALLOC_CONF
//
// `history` also turns torch's own recording on and checks, at each snapshot, that it holds what the trace callback
// saw. The protocol is described in ../README.md; crates/gapless-replay/examples/differential/driver.rs is its other
// end. Built with -DTORCH_MINOR=11 for 2.11: the interface of the allocator grew over the years. Exit 0 unless the
// bench itself is broken.

#include "../standin/device.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#define HAS_PEER_CACHE
#endif
#include <c10/util/Logging.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace c10::cuda::_internal {
// Exported, but declared in no header of the wheel.
C10_CUDA_API void setHasPrimaryContext(bool (*)(c10::DeviceIndex));
} // namespace c10::cuda::_internal

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

struct Operation {
  uint32_t kind, id;
  uint64_t a, b, c;
};
static_assert(sizeof(Operation) == 32);

enum Kind : uint32_t {
  STREAM = 0,
  MALLOC = 1,
  FREE = 2,
  RECORD_STREAM = 3,
  COMPLETE = 4,
  BEGIN_POOL = 5,
  END_POOL = 6,
  RELEASE_POOL = 7,
  EMPTY_CACHE = 8,
  FRACTION = 9,
  RESET_PEAK = 10,
  RESET_ACCUMULATED = 11,
  SNAPSHOT = 12,
  CREATE_POOL = 13,
  USE_ON_OOM = 14,
  NO_SPLIT = 15,
  CURRENT = 16,
  CAPTURE = 17,
  MARK = 18,
  MALLOC_AT = 19,
  ANNOTATE = 20,
  RESERVE_CLASS = 21,
};

enum Status : uint32_t { OK = 0, OOM = 1, SKIPPED = 2, FAILED = 3, UNPLACED = 4 };

struct Entry {
  uint64_t action, address, size, stream;
  bool operator==(const Entry&) const = default;
};

std::vector<Entry> entries;      // of the operation under way
std::vector<Entry> recorded;     // all of them that torch would record, with `history`
bool history = false;

// ---- output ----

std::vector<char> out;

void flush() {
  if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size()) std::exit(74);
  out.clear();
}

void put_bytes(const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

void put32(uint32_t value) { put_bytes(&value, sizeof value); }
void put64(uint64_t value) { put_bytes(&value, sizeof value); }

// ---- statistics: an array of fields, of which an answer carries those that changed ----

constexpr size_t FIELDS = 9 * 3 * 4 + 15;
using Fields = std::array<uint64_t, FIELDS>;

template <class Stat>
uint64_t* put_stat(uint64_t* at, const Stat& stat) {
  *at++ = stat.current;
  *at++ = stat.peak;
  *at++ = stat.allocated;
  *at++ = stat.freed;
  return at;
}

// From 2.13 on: reserved bytes of private pools, in the order of the ids.
using PoolFields = std::map<std::pair<uint64_t, uint64_t>, std::array<uint64_t, 12>>;

template <class DeviceStats>
PoolFields pool_fields([[maybe_unused]] const DeviceStats& stats) {
  PoolFields pools;
#if TORCH_MINOR >= 13
  for (const auto& [id, kinds] : stats.reserved_bytes_by_private_pools) {
    uint64_t* at = pools[id].data();
    for (const auto& stat : kinds) at = put_stat(at, stat);
  }
#endif
  return pools;
}

template <class DeviceStats>
Fields fields(const DeviceStats& stats) {
  Fields all;
  uint64_t* at = all.data();
  for (const auto* group :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes, &stats.reserved_bytes,
        &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (const auto& stat : *group) at = put_stat(at, stat);
  }
  at = put_stat(at, stats.oversize_allocations);
  at = put_stat(at, stats.oversize_segments);
  *at++ = stats.num_alloc_retries;
  *at++ = stats.num_ooms;
  *at++ = stats.num_sync_all_streams;
  *at++ = stats.num_device_alloc;
  *at++ = stats.num_device_free;
  *at++ = device_used();
  *at++ = device_pending();
  return all;
}

Fields before{};
PoolFields pools_before;

// The last bit of an answer's set of changed fields: figures of pools follow.
constexpr uint64_t POOLS_CHANGED = uint64_t{1} << 63;
static_assert(FIELDS < 127);

void put_pools(const PoolFields& now) {
  std::vector<PoolFields::value_type> changed;
  for (const auto& pool : now) {
    const auto known = pools_before.find(pool.first);
    if (known == pools_before.end() || known->second != pool.second) changed.push_back(pool);
  }
  put64(changed.size());
  for (const auto& [id, values] : changed) {
    put64(id.first);
    put64(id.second);
    for (const uint64_t value : values) put64(value);
  }
  pools_before = now;
}

void put_answer(Status status, uint64_t address) {
  const auto stats = allocator::get()->getDeviceStats(0);
  const Fields now = fields(stats);
  const PoolFields pools = pool_fields(stats);
  uint64_t changed[2] = {0, pools == pools_before ? 0 : POOLS_CHANGED};
  for (size_t i = 0; i < FIELDS; i++) {
    if (now[i] != before[i]) changed[i / 64] |= uint64_t{1} << (i % 64);
  }
  put32(status);
  put32(static_cast<uint32_t>(entries.size()));
  put64(address);
  put64(changed[0]);
  put64(changed[1]);
  for (size_t i = 0; i < FIELDS; i++) {
    if (now[i] != before[i]) put64(now[i]);
  }
  before = now;
  if (changed[1] & POOLS_CHANGED) put_pools(pools);
  if (!entries.empty()) put_bytes(entries.data(), entries.size() * sizeof(Entry));
  entries.clear();
}

// ---- the state at the end ----

void broken(const char* what) {
  std::fprintf(stderr, "driver: %s\n", what);
  std::exit(70);
}

template <class Snapshot>
void check_history(const Snapshot& snapshot) {
  const auto& trace = snapshot.device_traces.at(0);
  // The snapshot's own entry is made after the history was copied.
  if (trace.size() + 1 != recorded.size()) broken("torch's history is not as long as what its trace callback saw");
  for (size_t i = 0; i < trace.size(); i++) {
    const Entry entry{static_cast<uint64_t>(trace[i].action_), trace[i].addr_, trace[i].size_, reinterpret_cast<uint64_t>(trace[i].stream_)};
    if (!(entry == recorded[i])) broken("torch's history is not what its trace callback saw");
  }
}

template <class Snapshot>
void put_snapshot(const Snapshot& snapshot) {
  put64(snapshot.segments.size());
  for (const auto& segment : snapshot.segments) {
    put64(segment.address);
    put64(segment.total_size);
    put64(segment.requested_size);
    put64(segment.allocated_size);
    put64(segment.active_size);
    put64(reinterpret_cast<uint64_t>(segment.stream));
    put64(segment.owner_private_pool_id.first);
    put64(segment.owner_private_pool_id.second);
    put64((segment.is_large ? 1 : 0) | (segment.is_expandable ? 2 : 0));
    put64(segment.blocks.size());
    for (const auto& block : segment.blocks) {
      put64(block.size);
      put64(block.requested_size);
      put64((block.allocated ? 1 : 0) | (block.active ? 2 : 0));
    }
  }
}

// ---- operations ----

std::vector<void*> pointers;
std::vector<uint64_t> places;    // by id: where its allocation lies, or lay last
std::array<uint64_t, 64> streams{};

std::function<bool(cudaStream_t)> filter_of(uint64_t accepted) {
  if (accepted == 0) return [](cudaStream_t) { return true; };
  return [accepted](cudaStream_t stream) {
    for (size_t i = 0; i < streams.size(); i++) {
      if ((accepted >> i & 1) && streams[i] == reinterpret_cast<uint64_t>(stream)) return true;
    }
    return false;
  };
}

void*& pointer(uint32_t id) {
  if (id >= pointers.size()) pointers.resize(std::max<size_t>(id + size_t{1}, pointers.size() * 2));
  return pointers[id];
}

void remember(uint32_t id, void* address) {
  pointer(id) = address;
  if (places.size() < pointers.size()) places.resize(pointers.size());
  if (address) places[id] = reinterpret_cast<uint64_t>(address);
}

#if TORCH_MINOR >= 13
Status mark_capture(bool begins) {
  static uint64_t open = 0;
  if (!begins && open == 0) return SKIPPED;
  open += begins ? 1 : -1;
  begins ? allocator::get()->markCaptureBegin(0) : allocator::get()->markCaptureEnd(0);
  return OK;
}

// At `offset` from where the allocation `near` lies or lay, on the thread's current stream. The library refuses with a
// plain error; what it calls an internal one is a fault of the library, and shows.
Status malloc_at(uint32_t id, uint64_t size, uint64_t near, uint64_t offset, uint64_t& address) {
  const uint64_t base = near < places.size() ? places[near] : 0;
  if (!base) return SKIPPED;
  try {
    c10::DataPtr data = allocator::get()->allocateWithAddress(size, reinterpret_cast<void*>(base + offset));
    address = reinterpret_cast<uint64_t>(data.release_context());
    remember(id, reinterpret_cast<void*>(address));
    return OK;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    if (std::string(error.what_without_backtrace()).find("INTERNAL ASSERT") != std::string::npos) throw;
    return UNPLACED;
  }
}
#endif

#if TORCH_MINOR >= 15
// The classes that the bench knows, by number; the first means none.
constexpr const char* CLASSES[] = {"", "decode", "prefill", "nobody"};
#endif

Status record_stream(void* address, uint64_t stream) {
  auto* native = allocator::get();
  c10::DataPtr data(address, address, native->raw_deleter(), c10::Device(c10::DeviceType::CUDA, 0));
  native->recordStream(data, c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(stream), 0));
  data.release_context();
  return OK;
}

Status empty_cache(c10::cuda::MempoolId_t pool) {
#if TORCH_MINOR >= 8
  allocator::get()->emptyCache(pool);
#else
  if (pool.first || pool.second) return SKIPPED;
  allocator::get()->emptyCache();
#endif
  return OK;
}

Status run(const Operation& op, uint64_t& address) {
  auto* native = allocator::get();
  const c10::cuda::MempoolId_t pool{op.a, op.b};
  switch (op.kind) {
    case STREAM:
      streams.at(op.id) = op.a;
      return OK;
    case MALLOC: {
      void* result = native->raw_alloc_with_stream(op.a, reinterpret_cast<cudaStream_t>(op.b));
      remember(op.id, result);
      address = reinterpret_cast<uint64_t>(result);
      return OK;
    }
    case FREE: {
      void*& freed = pointer(op.id);
      if (!freed) return SKIPPED;
      address = reinterpret_cast<uint64_t>(freed);
      native->raw_delete(freed);
      freed = nullptr;
      return OK;
    }
    case RECORD_STREAM: {
      void* used = pointer(op.id);
      if (!used) return SKIPPED;
      address = reinterpret_cast<uint64_t>(used);
      return record_stream(used, op.a);
    }
    case COMPLETE:
      device_complete(op.a, op.b);
      return OK;
    case BEGIN_POOL:
      native->beginAllocateToPool(0, pool, filter_of(op.c));
      return OK;
    case END_POOL:
      native->endAllocateToPool(0, pool);
      return OK;
    case RELEASE_POOL:
      native->releasePool(0, pool);
      return OK;
    case EMPTY_CACHE:
      return empty_cache(pool);
    case FRACTION: {
      double fraction;
      std::memcpy(&fraction, &op.a, sizeof fraction);
      native->setMemoryFraction(fraction, 0);
      return OK;
    }
    case RESET_PEAK:
      native->resetPeakStats(0);
      return OK;
    case RESET_ACCUMULATED:
      native->resetAccumulatedStats(0);
      return OK;
    case SNAPSHOT:
      return OK;
#if TORCH_MINOR >= 8
    case CREATE_POOL:
      native->createOrIncrefPool(0, pool);
      return OK;
#endif
#if TORCH_MINOR >= 11
    case USE_ON_OOM:
      native->setUseOnOOM(0, pool, op.c != 0);
      return OK;
#endif
#if TORCH_MINOR >= 10
    case NO_SPLIT:
      native->setNoSplit(0, pool);
      return OK;
#endif
    case CURRENT:
      c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(op.a), 0));
      return OK;
    case CAPTURE:
      device_capture(op.a, op.b != 0);
      return OK;
#if TORCH_MINOR >= 13
    case MARK:
      return mark_capture(op.a != 0);
    case MALLOC_AT:
      return malloc_at(op.id, op.a, op.b, op.c, address);
#endif
#if TORCH_MINOR >= 14
    case ANNOTATE: {
      void* noted = pointer(op.id);
      if (!noted) return SKIPPED;
      address = reinterpret_cast<uint64_t>(noted);
      native->annotateMemory(noted, "a note");
      return OK;
    }
#endif
#if TORCH_MINOR >= 15
    case RESERVE_CLASS:
      allocator::setExpandableSegmentReserveClassForStream(reinterpret_cast<cudaStream_t>(op.a), CLASSES[op.id]);
      return OK;
#endif
    default:
      return SKIPPED;
  }
}

void answer(const Operation& op) {
  uint64_t address = 0;
  std::string message;
  Status status;
  device_tick();
  try {
    status = run(op, address);
  } catch (const c10::OutOfMemoryError&) {
    status = OOM;
    pointer(op.id) = nullptr;
  } catch (const c10::Error& error) {
    status = FAILED;
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    status = FAILED;
    message = error.what();
  }
  if (op.kind == SNAPSHOT) {
    const auto snapshot = allocator::get()->snapshot();
    if (history) check_history(snapshot);
    put_answer(status, address);
    put_snapshot(snapshot);
  } else {
    put_answer(status, address);
  }
  if (status == FAILED) {
    put64(message.size());
    put_bytes(message.data(), message.size());
  }
}

void start(uint64_t capacity) {
  // Newer versions warn at each failure: a million operations would say nothing else.
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);
  c10::initLogging();
  device_open(capacity, [](uint32_t what, uint64_t stream, uint64_t ready) { entries.push_back({what, 0, ready, stream}); });
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#ifdef HAS_PEER_CACHE
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
  auto* native = allocator::get();
  native->init(1);
  native->attachAllocatorTraceTracker([](const auto& entry) {
    const Entry seen{static_cast<uint64_t>(entry.action_), entry.addr_, entry.size_, reinterpret_cast<uint64_t>(entry.stream_)};
    entries.push_back(seen);
    if (history) recorded.push_back(seen);
  });
  if (!history) return;
  const auto never = allocator::RecordContext::NEVER;
  const size_t all = size_t{1} << 40;
#if TORCH_MINOR >= 11
  native->recordHistory(true, nullptr, all, never, false, {});
#elif TORCH_MINOR >= 8
  native->recordHistory(true, nullptr, all, never, false);
#else
  native->recordHistory(true, nullptr, all, never);
#endif
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: driver CAPACITY [history] < operations > answers\n");
    return 2;
  }
  history = argc > 2 && std::strcmp(argv[2], "history") == 0;
  try {
    start(std::strtoull(argv[1], nullptr, 0));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "driver: the allocator did not start: %s\n", error.what());
    return 70;
  }
  std::vector<Operation> batch(4096);
  while (size_t count = std::fread(batch.data(), sizeof(Operation), batch.size(), stdin)) {
    for (size_t i = 0; i < count; i++) {
      answer(batch[i]);
      if (out.size() > size_t{1} << 18) flush();
    }
    flush();
  }
  std::fflush(stdout);
  // Destructors of the allocator at exit would call a device that is being torn down too.
  std::_Exit(0);
}
