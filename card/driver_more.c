/* More of CUDA's driver by name: loading and starting kernels that were compiled at run time, for torch's own (nvrtc.c)
 * and for Triton's. They do nothing. */

#include "answers.h"
#include "echo.h"
#include "properties.h"

/* A module or a function: an address that is never dereferenced. */
#define LOADED ((void *)0x10)

int cuModuleLoadData(void **out, const void *image) { (void)image; *out = LOADED; return 0; }
int cuModuleLoad(void **out, const char *file) { (void)file; *out = LOADED; return 0; }
int cuModuleLoadDataEx(void **out) { *out = LOADED; return 0; }
int cuModuleGetFunction(void **out, void *module, const char *name) { (void)module; (void)name; *out = LOADED; return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, void *function, int block, size_t shared) {
    (void)function; (void)shared;
    int threads = card_described() ? card_attribute(39) : 2048;
    *out = block > 0 && threads / block > 0 ? threads / block : 1;
    return 0;
}
/* Triton asks for the card's address of a pointer: it is the same. */
int cuPointerGetAttribute(uint64_t *out, int attribute, uint64_t address) {
    enum { DEVICE_POINTER = 3 };
    if (attribute != DEVICE_POINTER) device_unexpected("cuPointerGetAttribute was called for an attribute that the card has no answer for");
    *out = address;
    return 0;
}
/* Registers, spills and the like: few, so that no launch is refused. */
int cuFuncGetAttribute(int *out, int attribute, void *function) {
    (void)function;
    *out = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return 0;
}

int cuLaunchKernel(void) { echo_forget(); return 0; }
int cuLaunchKernelEx(void) { echo_forget(); return 0; }
int cuLaunchCooperativeKernel(void) { echo_forget(); return 0; }
DOES_NOTHING(cuFuncSetAttribute) DOES_NOTHING(cuFuncSetCacheConfig)
DOES_NOTHING(cuCtxSetLimit)
/* How a kernel's hardware copies address a tensor: a record on the host that kernels alone read (grouped products). */
DOES_NOTHING(cuTensorMapEncodeTiled)
/* Clusters of thread blocks: as many as there are processors. */
int cuOccupancyMaxActiveClusters(int *out) { *out = card_attribute(PROCESSORS) ? card_attribute(PROCESSORS) : 1; return 0; }

/* torch 2.15 asks for the driver's own messages of errors; there are none. */
int cuLogsRegisterCallback(void *function, void *data, void **out) { (void)function; (void)data; *out = LOADED; return 0; }
DOES_NOTHING(cuLogsUnregisterCallback)

/* torch looks these up for contexts with a part of the processors, and for memory that many cards see as one. Their
 * memory was never measured. */
NOT_KNOWN(cuCtxFromGreenCtx) NOT_KNOWN(cuDevResourceGenerateDesc) NOT_KNOWN(cuDevSmResourceSplitByCount)
NOT_KNOWN(cuDeviceGetDevResource) NOT_KNOWN(cuGreenCtxCreate) NOT_KNOWN(cuGreenCtxDestroy) NOT_KNOWN(cuGreenCtxStreamCreate)
NOT_KNOWN(cuMulticastAddDevice) NOT_KNOWN(cuMulticastBindMem) NOT_KNOWN(cuMulticastCreate) NOT_KNOWN(cuMulticastUnbind)

/* cuDNN and Triton look these up at start, and do not call them on this card: attention plans are not compiled
 * (cudnn_backend.c). */
int cuCtxGetLimit(size_t *out, int limit) { (void)limit; *out = 0; return 0; }
NOT_KNOWN(cuKernelGetAttribute) NOT_KNOWN(cuKernelGetFunction) NOT_KNOWN(cuKernelSetAttribute)
NOT_KNOWN(cuLibraryGetKernel) NOT_KNOWN(cuLibraryLoadData) NOT_KNOWN(cuLibraryLoadFromFile)
NOT_KNOWN(cuLibraryUnload) NOT_KNOWN(cuLinkAddData) NOT_KNOWN(cuLinkCreate)
NOT_KNOWN(cuLinkDestroy) NOT_KNOWN(cuOccupancyMaxPotentialClusterSize) NOT_KNOWN(cuCtxPopCurrent) NOT_KNOWN(cuCtxPushCurrent)
