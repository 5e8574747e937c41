/* More of CUDA's runtime by name: what whole programs call beside what the allocator's tests need, which is in
 * ../torch-bench/python/runtime.c. Nothing is stored on the card. */

#include "answers.h"
#include "echo.h"
#include "properties.h"
#include <string.h>

/* Where a variable of a kernel would be: an address on the card that no allocation has. */
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

/* torch's other allocator, cudaMallocAsync: its pools are the driver's, and the card has none. */
NOT_KNOWN(cudaMemPoolGetAttribute) NOT_KNOWN(cudaMemPoolSetAccess) NOT_KNOWN(cudaMemPoolSetAttribute)
NOT_KNOWN(cudaMemPoolTrimTo)
