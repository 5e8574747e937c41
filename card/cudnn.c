/* cuDNN without a card, except for its backend (cudnn_backend.c) and recurrent layers (cudnn_rnn.c): versions from the
 * real library, descriptors as plain structs, and the workspaces of batch normalisation. */

#define _GNU_SOURCE
#include "answers.h"
#include "cudnn.h"
#include "notes.h"
#include "properties.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void *real_cudnn(const char *function) {
    static void *library;
    if (!library) library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
    if (!library) library = dlopen("libcudnn.so.9", RTLD_NOW);
    void *found = library ? dlsym(library, function) : NULL;
    char complaint[256];
    snprintf(complaint, sizeof complaint, "libcudnn.so.9 has no %s", function);
    if (!found) device_unexpected(complaint);
    return found;
}

/* ---- versions and errors: the real library knows them ---- */

size_t cudnnGetVersion(void) { return ((size_t (*)(void))real_cudnn(__func__))(); }
size_t cudnnGetCudartVersion(void) { return ((size_t (*)(void))real_cudnn(__func__))(); }
int cudnnGetProperty(int what, int *out) { return ((int (*)(int, int *))real_cudnn(__func__))(what, out); }
const char *cudnnGetErrorString(int error) { return ((const char *(*)(int))real_cudnn(__func__))(error); }
void cudnnGetLastErrorString(char *out, size_t room) { ((void (*)(char *, size_t))real_cudnn(__func__))(out, room); }

/* ---- handles and descriptors ---- */

HANDLES(cudnnCreate, cudnnDestroy)
int cudnnGetStream(void *handle, void **out) { (void)handle; *out = NULL; return 0; }
DOES_NOTHING(cudnnSetStream)

/* Large enough for every descriptor here. */
#define DESCRIPTOR(name)                                                                                \
    int cudnnCreate##name##Descriptor(void **out) { *out = calloc(1, 512); return 0; }                  \
    int cudnnDestroy##name##Descriptor(void *descriptor) { free(descriptor); return 0; }
DESCRIPTOR(Activation) DESCRIPTOR(CTCLoss) DESCRIPTOR(Convolution) DESCRIPTOR(Dropout) DESCRIPTOR(Filter) DESCRIPTOR(Pooling)
DESCRIPTOR(RNN) DESCRIPTOR(RNNData) DESCRIPTOR(SpatialTransformer) DESCRIPTOR(Tensor)

static int fitting(int count) {
    if (count < 0 || count > MOST_DIMENSIONS) device_unexpected("a cuDNN descriptor of more than eight dimensions");
    return count;
}

int cudnnSetTensorNdDescriptor(tensor *out, int type, int count, const int *sizes, const int *strides) {
    out->type = type;
    out->count = fitting(count);
    memcpy(out->sizes, sizes, (size_t)count * sizeof(int));
    memcpy(out->strides, strides, (size_t)count * sizeof(int));
    return 0;
}
int cudnnGetTensorNdDescriptor(const tensor *of, int most, int *type, int *count, int *sizes, int *strides) {
    size_t shown = (size_t)(most < of->count ? most : of->count) * sizeof(int);
    *type = of->type;
    *count = of->count;
    memcpy(sizes, of->sizes, shown);
    memcpy(strides, of->strides, shown);
    return 0;
}
int cudnnSetFilterNdDescriptor(tensor *out, int type, int format, int count, const int *sizes) {
    out->type = type;
    out->count = fitting(count);
    out->strides[0] = format;
    memcpy(out->sizes, sizes, (size_t)count * sizeof(int));
    return 0;
}
int cudnnGetFilterNdDescriptor(const tensor *of, int most, int *type, int *format, int *count, int *sizes) {
    *type = of->type;
    *format = of->strides[0];
    *count = of->count;
    memcpy(sizes, of->sizes, (size_t)(most < of->count ? most : of->count) * sizeof(int));
    return 0;
}

/* ---- batch normalisation: a workspace for channels-last tensors alone, which torch gives the persistent mode ---- */

enum { PERSISTENT = 2 };

static uint64_t elements(const tensor *of) {
    uint64_t product = 1;
    for (int i = 0; i < of->count; i++) product *= (uint64_t)of->sizes[i];
    return product;
}

/* Fitted to runs on an H200 (64 and 256 channels, 28 and 112 pixels, float32 and float16): within 0.6 %. */
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, const tensor *x, const tensor *z,
                                                             const tensor *y, const tensor *scale, void *activation, size_t *out) {
    (void)handle; (void)operations; (void)z; (void)y; (void)scale; (void)activation;
    *out = 0;
    if (mode != PERSISTENT) return 0;
    double each = element_size(x->type) == 4 ? 129.0 / 1024.0 : 0.050391;
    *out = (size_t)(each * (double)elements(x)) + (element_size(x->type) == 4 ? 1076 : 1385);
    card_note(BY_RULE, __func__, *out);
    return 0;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, const tensor *x, const tensor *y,
                                                      const tensor *dy, const tensor *dz, const tensor *dx, const tensor *scale,
                                                      void *activation, size_t *out) {
    (void)handle; (void)operations; (void)y; (void)dy; (void)dz; (void)dx; (void)scale; (void)activation;
    *out = 0;
    if (mode != PERSISTENT) return 0;
    *out = (size_t)(elements(x) / 12) + 1060;
    card_note(BY_RULE, __func__, *out);
    return 0;
}
/* torch's only mode here keeps nothing between the passes. */
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations, void *activation, const tensor *x,
                                                         size_t *out) {
    (void)handle; (void)mode; (void)operations; (void)activation; (void)x;
    *out = 0;
    return 0;
}

/* ---- the connectionist loss: exact in four runs on an H200 ---- */

/* A descriptor of it holds the longest label. */
int cudnnSetCTCLossDescriptor_v9(int *out, int type, int normalisation, int gradient, int longest) {
    (void)type; (void)normalisation; (void)gradient;
    *out = longest;
    return 0;
}
int cudnnSetCTCLossDescriptor_v8(int *out, int type, int normalisation, int nans, int longest) {
    return cudnnSetCTCLossDescriptor_v9(out, type, normalisation, nans, longest);
}

/* Probabilities have steps, batch, labels. */
static int connectionist(const tensor *probabilities, size_t longest, size_t *out) {
    size_t steps = (size_t)probabilities->sizes[0], batch = (size_t)probabilities->sizes[1], labels = (size_t)probabilities->sizes[2];
    *out = 4 * (steps * batch * (labels + 2 * (2 * longest + 1)) + batch * (3 * longest + 5));
    card_note(BY_RULE, "cudnnGetCTCLossWorkspaceSize", *out);
    return 0;
}
int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, const int *loss, const tensor *probabilities, const tensor *gradients,
                                    size_t *out) {
    (void)handle; (void)algorithm; (void)gradients;
    return connectionist(probabilities, (size_t)*loss, out);
}
/* The same with labels and lengths on the host. */
int cudnnGetCTCLossWorkspaceSize(void *handle, const tensor *probabilities, const tensor *gradients, const int *labels, const int *label_lengths,
                                 const int *input_lengths, int algorithm, void *loss, size_t *out) {
    (void)handle; (void)gradients; (void)labels; (void)input_lengths; (void)algorithm; (void)loss;
    int longest = 0;
    for (int i = 0; i < probabilities->sizes[1]; i++) longest = label_lengths[i] > longest ? label_lengths[i] : longest;
    return connectionist(probabilities, (size_t)longest, out);
}

int cudnnDropoutGetStatesSize(void *handle, size_t *out) {
    (void)handle;
    *out = (size_t)card_attribute(PROCESSORS) * 1024 * 48;
    return 0;
}

/* A dropout descriptor holds its probability. */
int cudnnSetDropoutDescriptor(float *out, void *handle, float probability, void *states, size_t size, unsigned long long seed) {
    (void)handle; (void)states; (void)size; (void)seed;
    *out = probability;
    return 0;
}
int cudnnRestoreDropoutDescriptor(float *out, void *handle, float probability, void *states, size_t size, unsigned long long seed) {
    return cudnnSetDropoutDescriptor(out, handle, probability, states, size, seed);
}

DOES_NOTHING(cudnnBatchNormalizationBackwardEx) DOES_NOTHING(cudnnBatchNormalizationForwardInference)
DOES_NOTHING(cudnnBatchNormalizationForwardTrainingEx) DOES_NOTHING(cudnnCTCLoss) DOES_NOTHING(cudnnCTCLoss_v8) DOES_NOTHING(cudnnPoolingForward)
DOES_NOTHING(cudnnSetActivationDescriptor)
DOES_NOTHING(cudnnSetCTCLossDescriptorEx)
DOES_NOTHING(cudnnSetConvolutionGroupCount) DOES_NOTHING(cudnnSetConvolutionMathType)
DOES_NOTHING(cudnnSetConvolutionNdDescriptor)
DOES_NOTHING(cudnnSetPooling2dDescriptor) DOES_NOTHING(cudnnSetSpatialTransformerNdDescriptor)
DOES_NOTHING(cudnnSpatialTfGridGeneratorBackward) DOES_NOTHING(cudnnSpatialTfGridGeneratorForward)
DOES_NOTHING(cudnnSpatialTfSamplerBackward) DOES_NOTHING(cudnnSpatialTfSamplerForward)

/* torch convolves through the backend, unless TORCH_CUDNN_V8_API_DISABLED is set. */
NOT_KNOWN(cudnnConvolutionBackwardData) NOT_KNOWN(cudnnConvolutionBackwardFilter)
NOT_KNOWN(cudnnConvolutionBiasActivationForward) NOT_KNOWN(cudnnConvolutionForward)
NOT_KNOWN(cudnnFindConvolutionBackwardDataAlgorithmEx) NOT_KNOWN(cudnnFindConvolutionBackwardFilterAlgorithmEx)
NOT_KNOWN(cudnnFindConvolutionForwardAlgorithmEx) NOT_KNOWN(cudnnGetConvolutionBackwardDataAlgorithm_v7)
NOT_KNOWN(cudnnGetConvolutionBackwardDataWorkspaceSize) NOT_KNOWN(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
NOT_KNOWN(cudnnGetConvolutionBackwardFilterWorkspaceSize) NOT_KNOWN(cudnnGetConvolutionForwardAlgorithm_v7)
NOT_KNOWN(cudnnGetConvolutionForwardWorkspaceSize)
