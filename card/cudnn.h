/* Shared by the files of cuDNN's stand-in: the descriptors that torch fills, and the real library below. */

#ifndef GAPLESS_CARD_CUDNN_H
#define GAPLESS_CARD_CUDNN_H

#include <stddef.h>
#include <stdint.h>

enum { MOST_DIMENSIONS = 8 };

/* A tensor or, with its format in `strides[0]`, a filter. */
typedef struct { int type, count, sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS]; } tensor;

/* cudnnDataType_t: bytes of an element. */
static inline size_t element_size(int type) { return type == 1 ? 8 : type == 2 || type == 9 ? 2 : type == 3 ? 1 : 4; }

/* A function of the real libcudnn.so.9, which torch has loaded; ends the process if that has none of that name. */
void *real_cudnn(const char *function);

#endif
