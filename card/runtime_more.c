/* More of CUDA's runtime by name: functions that whole programs call beside those of the allocator's tests, which are
 * in ../torch-bench/python/runtime.c. Nothing is stored on the card. */

#include "answers.h"
#include "echo.h"
#include "properties.h"
#include <string.h>

/* The address of a kernel's variable: one on the card that no allocation has. */
#define SYMBOLS ((void *)DEVICE_SYMBOLS)

int cudaGetSymbolAddress(void **out, const void *symbol) { (void)symbol; *out = SYMBOLS; return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *function, int block, size_t shared) {
    (void)function; (void)shared;
    int threads = card_described() ? card_attribute(39) : 2048;
    *out = block > 0 && threads / block > 0 ? threads / block : 1;
    return 0;
}
int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data, unsigned flags) {
    (void)flags;
    function(stream, 0, data);
    return 0;
}
int cudaGraphNodeGetDependencies(void *node, void **dependencies, void **edges, size_t *count) {
    (void)node; (void)dependencies; (void)edges;
    *count = 0;
    return 0;
}

int cudaLaunchKernel(void) { echo_forget(); return 0; }
int cudaLaunchCooperativeKernel(void) { echo_forget(); return 0; }

DOES_NOTHING(cudaMemcpyToSymbol) DOES_NOTHING(cudaMemcpy2DAsync)
DOES_NOTHING(cudaProfilerStart) DOES_NOTHING(cudaProfilerStop)
DOES_NOTHING(cudaGraphDebugDotPrint)

/* Memory of the nodes that allocate in graphs: graphs on this card have none (cudaMallocAsync is refused). */
int cudaDeviceGetGraphMemAttribute(int ordinal, int attribute, uint64_t *out) { (void)ordinal; (void)attribute; *out = 0; return 0; }
DOES_NOTHING(cudaDeviceSetGraphMemAttribute)

/* Kernels that torch brings compiled, beside those it is linked to: a library or a kernel is an address that is never
 * dereferenced. Their variables have sizes that only the code tells. */
#define LOADED ((void *)0x10)
int cudaLibraryLoadData(void **out) { *out = LOADED; return 0; }
int cudaLibraryLoadFromFile(void **out) { *out = LOADED; return 0; }
int cudaLibraryGetKernel(void **out, void *library, const char *name) { (void)library; (void)name; *out = LOADED; return 0; }
DOES_NOTHING(cudaLibraryUnload) DOES_NOTHING(cudaKernelSetAttributeForDevice)
NOT_KNOWN(cudaLibraryGetGlobal) NOT_KNOWN(cudaLibraryGetKernelCount) NOT_KNOWN(cudaLibraryGetManaged)
NOT_KNOWN(cudaLibraryGetUnifiedFunction)

/* Branches and loops inside graphs: captures of the card know one graph a capture. */
NOT_KNOWN(cudaGraphAddNode) NOT_KNOWN(cudaGraphConditionalHandleCreate) NOT_KNOWN(cudaStreamBeginCaptureToGraph)
NOT_KNOWN(cudaStreamUpdateCaptureDependencies)

/* Memory that moves between host and card as it is used: how much of it is on the card depends on the kernels. */
NOT_KNOWN(cudaMallocManaged)

/* torch's other allocator, cudaMallocAsync: its pools are the driver's, and the card has none. */
NOT_KNOWN(cudaMemPoolGetAttribute) NOT_KNOWN(cudaMemPoolSetAccess) NOT_KNOWN(cudaMemPoolSetAttribute)
NOT_KNOWN(cudaMemPoolTrimTo)
