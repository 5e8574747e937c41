// Decodes chunks of bf16 values on a GPU: the cascade of crates/gapless-weights/src/codec/cascade.rs. One thread block
// decodes one chunk; grid = number of chunks, block = THREADS threads.
//
// The host has read the chunk's header and checked every place and length in it (`Chunk`). What is left to check is
// that each level passes on as many items as the header says. The kernel counts them first and decodes nothing if they
// differ, so it never reads past a table.
//
// Levels run from the last to the first. The symbols of a level land in shared memory and are what the level above
// passes on. Level l writes table A if l is odd, else table B; the raw symbols count as a level. Only the first level
// writes to global memory.
//
// A warp works on rows of 256 items; a lane has 8 of them. Codes are spread to nibbles, so that one byte permutation
// looks up four palette entries, and another one puts the next symbols of the level below where the escapes are:
//
//   code nibbles   c7..c0                       prmt(palette, code)   four symbols, 0 where the code is the escape
//   escape nibbles m7..m0, each 0 or 1          m * 0x11111110        nibble i: how many escapes stand before item i
//                                               prmt(next, that)      the next symbols, at the place of each item
//
// tests/card/driver.cpp runs this file on a CPU.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define WARPS (THREADS / 32)
#define ROW 256

// As `Chunk` in ../cuda/chunk.rs.
struct Chunk {
    u64 source;       // address of the chunk
    u64 target;       // address of its first value, whether that is wanted or not
    u32 values;
    u32 first, last;  // the values that are wanted
    u32 levels;
    u32 bits[4];
    u32 escapes[4];   // items that each level passes on
    u32 places[5];    // where the planes of each level begin in the chunk, then the raw symbols
    u32 low;          // where the low bytes begin
    u64 palettes[4];  // symbols by code; 0 for the escape
};

// Bit k of a byte becomes nibble k.
__device__ __forceinline__ u32 spread(u32 x) {
    x &= 0xff;
    x = (x | x << 12) & 0x000f000f;
    x = (x | x << 6) & 0x03030303;
    return (x | x << 3) & 0x11111111;
}

// How many items a warp's share of a level passes on. A lane reads 32 items at a time.
template <u32 BITS>
__device__ u32 count(const u32* planes, u32 first, u32 last, u32 lane) {
    u32 sum = 0;
    for (u32 half = first + lane; half < last; half += 32) {
        const u32* at = planes + (half >> 1) * 2 * BITS + (half & 1);
        u32 escapes = ~0u;
        for (u32 b = 0; b < BITS; b++) escapes &= __ldg(at + 2 * b);
        sum += __popc(escapes);
    }
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    return sum;
}

// The rows of one warp. `at` is the first item of the level below that they take.
template <u32 BITS, bool FIRST>
__device__ void decode(const Chunk& chunk, const u32* planes, u32 blocks, u32 row, u32 last_row, u32 at, u64 palette,
                       const u8* from, u8* to, u32 lane) {
    const u32 low_palette = (u32)palette, high_palette = (u32)(palette >> 32);
    const u32 shift = 8 * (lane & 3), half = lane >> 2 & 1;
    const u8* low = (const u8*)(chunk.source + chunk.low);
    u16* values = (u16*)chunk.target;
    const bool is_aligned = (chunk.target & 15) == 0;
    for (; row < last_row; row++) {
        const u32 block = 4 * row + (lane >> 3), group = 32 * row + lane;
        const bool is_live = block < blocks;
        u32 plane[3] = {0, 0, 0}, escapes = is_live ? ~0u : 0;
        for (u32 b = 0; b < BITS; b++) {
            plane[b] = is_live ? __ldg(planes + block * 2 * BITS + 2 * b + half) : 0;
            escapes &= plane[b];
        }
        // Four lanes have the same 32 items: sum over the eight groups of lanes.
        const u32 own = __popc(escapes);
        u32 sum = own;
        for (u32 d = 4; d < 32; d <<= 1) {
            u32 below = __shfl_up_sync(~0u, sum, d);
            if (lane >= d) sum += below;
        }
        const u32 next = at + sum - own + __popc(escapes & ((1u << shift) - 1));
        at += __shfl_sync(~0u, sum, 31);
        u32 code = 0, escape = 0x11111111;
        for (u32 b = 0; b < BITS; b++) {
            u32 bits = spread(plane[b] >> shift);
            code += bits << b;
            escape &= bits;
        }
        if (!is_live) continue;
        const u32* words = (const u32*)from + (next >> 2);
        const u32 turn = 8 * (next & 3), a = words[0], b = words[1], c = words[2];
        const u32 w0 = __funnelshift_r(a, b, turn), w1 = __funnelshift_r(b, c, turn), pick = escape * 0x11111110u;
        const u32 e0 = __byte_perm(low_palette, high_palette, code)
                     | (__byte_perm(w0, w1, pick) & __byte_perm(0xff00, 0, escape));
        const u32 e1 = __byte_perm(low_palette, high_palette, code >> 16)
                     | (__byte_perm(w0, w1, pick >> 16) & __byte_perm(0xff00, 0, escape >> 16));
        if (!FIRST) {
            *(uint2*)(to + 8 * group) = make_uint2(e0, e1);
            continue;
        }
        const uint2 s = __ldg((const uint2*)(low + 8 * group));
        u32 v[4] = {__byte_perm(s.x, e0, 0x5140), __byte_perm(s.x, e0, 0x7362), __byte_perm(s.y, e1, 0x5140),
                    __byte_perm(s.y, e1, 0x7362)};
        for (int k = 0; k < 4; k++) v[k] = (v[k] >> 1 & 0x7fff7fff) | (v[k] << 15 & 0x80008000);
        if (is_aligned && 8 * group >= chunk.first && 8 * group + 8 <= chunk.last)
            *(uint4*)(values + 8 * group) = make_uint4(v[0], v[1], v[2], v[3]);
        else
            for (u32 k = 0; k < 8; k++)
                if (8 * group + k >= chunk.first && 8 * group + k < chunk.last)
                    values[8 * group + k] = (u16)(v[k >> 1] >> 16 * (k & 1));
    }
}

// `room` bytes of shared memory are table A, the rest table B. `error`, in the host's memory, becomes 1 + the number
// of a damaged chunk: any of them, if several are.
extern "C" __global__ void __launch_bounds__(THREADS)
gapless_decode(const Chunk* chunks, u32 room, u32* error) {
    extern __shared__ __align__(16) u8 tables[];
    __shared__ u32 counts[4][WARPS];
    const Chunk& chunk = chunks[blockIdx.x];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, levels = chunk.levels;
    const u8* source = (const u8*)chunk.source;
    const u8* raw = source + chunk.places[levels];
    u8* last_table = tables + (levels & 1 ? 0 : room);
    for (u32 k = threadIdx.x; k < chunk.escapes[levels - 1]; k += THREADS) last_table[k] = raw[k];
    for (u32 l = 0; l < levels; l++) {
        const u32 items = l ? chunk.escapes[l - 1] : chunk.values, blocks = (items + 63) / 64;
        const u32 rows = (blocks + 3) / 4, first = rows * warp / WARPS * 8;
        u32 last = rows * (warp + 1) / WARPS * 8;
        if (last > 2 * blocks) last = 2 * blocks;
        const u32* planes = (const u32*)(source + chunk.places[l]);
        u32 sum;
        switch (chunk.bits[l]) {
        case 1: sum = count<1>(planes, first, last, lane); break;
        case 2: sum = count<2>(planes, first, last, lane); break;
        default: sum = count<3>(planes, first, last, lane);
        }
        if (lane == 0) counts[l][warp] = sum;
    }
    __syncthreads();
    bool is_whole = true;
    for (u32 l = 0; l < levels; l++) {
        u32 sum = 0;
        for (u32 w = 0; w < WARPS; w++) sum += counts[l][w];
        is_whole &= sum == chunk.escapes[l];
    }
    if (!is_whole) {                                   // the same for every thread of the block
        if (threadIdx.x == 0) *error = blockIdx.x + 1;
        return;
    }
    for (int l = (int)levels - 1; l >= 0; l--) {
        const u32 items = l ? chunk.escapes[l - 1] : chunk.values, blocks = (items + 63) / 64, rows = (blocks + 3) / 4;
        const u32 row = rows * warp / WARPS, last = rows * (warp + 1) / WARPS;
        u32 at = 0;
        for (u32 w = 0; w < warp; w++) at += counts[l][w];
        const u32* planes = (const u32*)(source + chunk.places[l]);
        const u8* from = tables + (l & 1 ? room : 0);
        u8* to = tables + (l & 1 ? 0 : room);
        const u64 palette = chunk.palettes[l];
        switch (chunk.bits[l] + (l ? 0 : 4)) {
        case 1: decode<1, false>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        case 2: decode<2, false>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        case 3: decode<3, false>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        case 5: decode<1, true>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        case 6: decode<2, true>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        default: decode<3, true>(chunk, planes, blocks, row, last, at, palette, from, to, lane);
        }
        __syncthreads();
    }
}
