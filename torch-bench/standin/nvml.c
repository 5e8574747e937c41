/* The management library by name: from 2.13 on, c10 asks it about fabric handles without looking whether it is there.
 * Built as libnvidia-ml.so.1. There is a card; nothing runs on it, and it has no fabric. */

#include <stddef.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

static int card;

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) { (void)bus; *out = &card; return SUCCESS; }
int nvmlDeviceGetComputeRunningProcesses(void *dev, unsigned *count, void *out) { (void)dev; (void)out; *count = 0; return SUCCESS; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
/* nvmlGpuFabricInfoV_t: version, a 16-byte cluster, status, clique, then the state; 0 is "not supported". */
int nvmlDeviceGetGpuFabricInfoV(void *dev, char *out) { (void)dev; out[28] = 0; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13000; return SUCCESS; }
