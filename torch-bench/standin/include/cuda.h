/* c10 includes it beside the runtime header; nothing of it is needed here. */

#pragma once
#include <cuda_runtime_api.h>
