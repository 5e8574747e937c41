/* nvrtc: kernels that torch compiles at run time compile to nothing, and the driver below loads them.
 * A library of its own, with the name and versions of the real one. */

#include "answers.h"
#include <string.h>

static int nvrtc_program(void **out) { *out = calloc(1, 64); return 0; }
static void nvrtc_drop(void *program) { free(program); }

int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return 0; }
int nvrtcCreateProgram(void **out, const char *source, const char *name, int count, const char *const *headers, const char *const *names) {
    (void)source; (void)name; (void)count; (void)headers; (void)names;
    return nvrtc_program(out);
}
int nvrtcDestroyProgram(void **program) { nvrtc_drop(*program); *program = NULL; return 0; }
int nvrtcGetCUBINSize(void *program, size_t *out) { (void)program; *out = 8; return 0; }
int nvrtcGetPTXSize(void *program, size_t *out) { (void)program; *out = 8; return 0; }
int nvrtcGetCUBIN(void *program, char *out) { (void)program; memset(out, 0, 8); return 0; }
int nvrtcGetPTX(void *program, char *out) { (void)program; memset(out, 0, 8); return 0; }
int nvrtcGetProgramLogSize(void *program, size_t *out) { (void)program; *out = 1; return 0; }
int nvrtcGetProgramLog(void *program, char *out) { (void)program; *out = 0; return 0; }
int nvrtcGetLoweredName(void *program, const char *name, const char **out) { (void)program; *out = name; return 0; }
const char *nvrtcGetErrorString(int error) { (void)error; return "the stand-in compiler reports no errors"; }
DOES_NOTHING(nvrtcAddNameExpression) DOES_NOTHING(nvrtcCompileProgram)
/* cuDNN refuses its attention if this is missing, but it does not call it here (cudnn_backend.c). */
NOT_KNOWN(__nvrtcCPEx)
