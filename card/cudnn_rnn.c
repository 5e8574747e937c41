/* cuDNN's recurrent layers: the layout of the weights in their buffer, and the memory of a pass beside it.
 *
 * The sizes are fitted to 412 runs on an H200 (LSTM, GRU and tanh, 1 to 3 layers, one and both directions, float32,
 * bfloat16 and float16, with and without dropout, packed and padded, inputs as wide as the hidden state and others).
 * With s steps of all sequences together, u = s * hidden * directions, x = s * inputs, h = batch * hidden * directions,
 * all in elements:
 *
 *   reserve   = 256 + kept * u * layers + u * (layers - 1), and a bit an element and direction for dropout; if the
 *               output is projected, kept is 6 and a projected output: exact
 *   workspace = weights + 8 MiB * layers * directions + a * u + i * x + b * h * layers + 384, with the factors of
 *               `rules`: within 0.1 %, except for GRU and tanh in training with one direction and two or more layers,
 *               within 1 %, and for some of one layer in half precision, which take twice as much */

#include "answers.h"
#include "cudnn.h"
#include "notes.h"
#include <string.h>

typedef struct {
    int algorithm, cell, bias, both, input_mode, type, precision, math, input, hidden, projection, layers;
    unsigned flags;
    int dropout;
} rnn;
typedef struct { int type, layout, steps, batch, width; size_t all_steps; } sequence;

enum { CELL_RELU = 0, CELL_TANH = 1, CELL_LSTM = 2, CELL_GRU = 3 };

int cudnnSetRNNDescriptor_v8(rnn *out, int algorithm, int cell, int bias, int both, int input_mode, int type, int precision, int math,
                             int input, int hidden, int projection, int layers, const float *dropout, unsigned flags) {
    *out = (rnn){algorithm, cell, bias, both, input_mode, type, precision, math, input, hidden, projection, layers, flags, dropout && *dropout > 0};
    return 0;
}
int cudnnSetRNNDataDescriptor(sequence *out, int type, int layout, int steps, int batch, int width, const int *lengths, void *padding) {
    (void)padding;
    size_t all = 0;
    for (int i = 0; i < batch; i++) all += (size_t)(lengths ? lengths[i] : steps);
    *out = (sequence){type, layout, steps, batch, width, all};
    return 0;
}

/* ---- weights: for each layer and direction its matrices, then for each its biases ---- */

static int directions(const rnn *r) { return r->both ? 2 : 1; }
static int gates(const rnn *r) { return r->cell == CELL_LSTM ? 4 : r->cell == CELL_GRU ? 3 : 1; }
static int projects(const rnn *r) { return r->projection > 0 && r->projection != r->hidden; }
static int outputs(const rnn *r) { return projects(r) ? r->projection : r->hidden; }
static int matrices(const rnn *r) { return 2 * gates(r) + projects(r); }
static int biases(const rnn *r) { return r->bias == 0 ? 0 : r->bias == 2 ? 2 : 1; }

static size_t rows(const rnn *r, int matrix) { return (size_t)(matrix == 2 * gates(r) ? r->projection : r->hidden); }
static size_t columns(const rnn *r, int place, int matrix) {
    if (matrix == 2 * gates(r)) return (size_t)r->hidden;
    if (matrix >= gates(r)) return (size_t)outputs(r);
    return place < directions(r) ? (size_t)r->input : (size_t)outputs(r) * (size_t)directions(r);
}

/* Elements before a matrix of a place (a layer and direction). */
static size_t before(const rnn *r, int place, int matrix) {
    size_t sum = 0;
    for (int p = 0; p <= place; p++) {
        for (int m = 0; m < (p < place ? matrices(r) : matrix); m++) sum += rows(r, m) * columns(r, p, m);
    }
    return sum;
}

static size_t weights(const rnn *r) {
    int places = r->layers * directions(r);
    return (before(r, places, 0) + (size_t)places * (size_t)biases(r) * (size_t)gates(r) * (size_t)r->hidden) * element_size(r->type);
}

int cudnnGetRNNWeightSpaceSize(void *handle, const rnn *r, size_t *out) {
    (void)handle;
    *out = weights(r);
    return 0;
}

static void describe(tensor *out, int type, size_t height, size_t width) {
    *out = (tensor){type, 3, {1, (int)height, (int)width}, {(int)(height * width), (int)width, 1}};
}

int cudnnGetRNNWeightParams(void *handle, const rnn *r, int place, size_t size, char *space, int id, tensor *matrix, void **matrix_at,
                            tensor *bias, void **bias_at) {
    (void)handle; (void)size;
    tensor unused;
    void *nowhere;
    matrix = matrix ? matrix : &unused;
    bias = bias ? bias : &unused;
    matrix_at = matrix_at ? matrix_at : &nowhere;
    bias_at = bias_at ? bias_at : &nowhere;
    *matrix_at = *bias_at = NULL;
    matrix->count = bias->count = 0;
    if (id >= matrices(r)) return 0;
    size_t each = element_size(r->type);
    describe(matrix, r->type, rows(r, id), columns(r, place, id));
    *matrix_at = space + before(r, place, id) * each;
    int held = biases(r) * gates(r);
    if (id >= held) return 0;
    describe(bias, r->type, (size_t)r->hidden, 1);
    *bias_at = space + (before(r, r->layers * directions(r), 0) + (size_t)(place * held + id) * (size_t)r->hidden) * each;
    return 0;
}

/* ---- what a pass needs ---- */

enum { PACKED = 1 };
enum mode { INFERENCE, ONE_LAYER, MORE_LAYERS };
typedef struct { double u, x, h; } factors;

/* Of padded sequences, which are copied on the way in, and of packed ones. */
static const struct { int cell, directions; factors padded[3], packed[3]; } rules[] = {
    {CELL_LSTM, 1, {{5, 1, 10}, {5, 1, 11}, {5, 1, 10}}, {{4, 0, 6}, {4, 0, 6}, {4, 0, 6}}},
    {CELL_LSTM, 2, {{7, 1, 12}, {7, 1, 12}, {7, 1, 12}}, {{6, 0, 8}, {6, 0, 8}, {6, 0, 8}}},
    {CELL_GRU, 1, {{4, 1, 5}, {4, 2, 5}, {4, 1, 14}}, {{3, 0, 3}, {3, 0, 3}, {3, 0, 3}}},
    {CELL_GRU, 2, {{6, 1, 7}, {6, 1, 7}, {6, 2, 7}}, {{5, 0, 5}, {5, 0, 5}, {5, 0, 5}}},
    {CELL_TANH, 1, {{2, 1, 3}, {4, 2, 5}, {4, 1, 14}}, {{1, 0, 1}, {2, 0, 1}, {2, 0, 1}}},
    {CELL_TANH, 2, {{4, 1, 5}, {5, 2, 7}, {6, 2, 7}}, {{3, 0, 3}, {3, 0, 5}, {4, 0, 5}}},
};

int cudnnGetRNNTempSpaceSizes(void *handle, const rnn *r, int training, const sequence *x, size_t *workspace, size_t *reserve) {
    (void)handle;
    int cell = r->cell == CELL_RELU ? CELL_TANH : r->cell, both = directions(r), at = 0;
    while (rules[at].cell != cell || rules[at].directions != both) at++;
    enum mode mode = !training ? INFERENCE : r->layers == 1 ? ONE_LAYER : MORE_LAYERS;
    factors of = (x->layout == PACKED ? rules[at].packed : rules[at].padded)[mode];
    if (mode == MORE_LAYERS && both == 1 && cell != CELL_TANH && r->dropout) {
        of.u += 1.0;
        if (cell == CELL_GRU && x->layout != PACKED) of.h = 5.0;
    }
    size_t each = element_size(r->type), layers = (size_t)r->layers;
    size_t h = (size_t)x->batch * (size_t)r->hidden * (size_t)both, u = x->all_steps * (size_t)r->hidden * (size_t)both;
    size_t bias = (size_t)(r->layers * both) * (size_t)biases(r) * (size_t)gates(r) * (size_t)r->hidden * each;
    double elements = of.u * (double)u + of.x * (double)(x->all_steps * (size_t)r->input) + of.h * (double)h * (double)layers;
    size_t needed = weights(r) - bias + ((size_t)8 << 20) * layers * (size_t)both + (size_t)(elements * (double)each) + 384;
    size_t out = x->all_steps * (size_t)outputs(r) * (size_t)both;
    size_t kept = cell == CELL_LSTM ? 5 * u : cell == CELL_GRU ? 6 * u : u;
    if (projects(r)) kept = 6 * u + out;
    size_t masks = r->dropout ? (layers - 1) * out / 8 * (size_t)both : 0;
    if (workspace) *workspace = needed;
    if (reserve) *reserve = training ? (kept * layers + (layers - 1) * u) * each + 256 + masks : 0;
    card_note(BY_RULE, __func__, needed);
    return 0;
}

DOES_NOTHING(cudnnRNNBackwardData_v8) DOES_NOTHING(cudnnRNNBackwardWeights_v8) DOES_NOTHING(cudnnRNNForward)
