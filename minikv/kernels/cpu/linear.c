/* A linear layer on a CPU: out = x W^T + bias in float32, with W in panels. Lesson 04.

       W [N, K]     panel 0: columns 0 to COLUMNS - 1 of the result     panel 1     ...
                    k = 0: one weight of each column, k = 1: ..., so that a panel is read from front to back

   A step of decodes has some tens of rows: each weight is read from memory once and used for all of them. A thread goes
   through a panel in chunks of K. It multiplies each tile of rows with a chunk, which lies in its first cache, and asks
   meanwhile for the tile's share of the next chunk. So memory and arithmetic take their time side by side, which a
   library's product does one after the other when no weight is in a cache, as in a model of more weights than the
   cache holds. A chunk is asked for as what is needed once: it doesn't push out of the larger caches what the rest of a
   step needs again.

   A sum is added up in the order of k, whatever the number of rows: a row's result does not depend on the rows around
   it.

   Gated, as in an MLP: the first half of a panel's columns is of one weight, the gate, and the second half of another of
   the same shape. The result is silu(gate) * other, which never leaves the first cache before. */

#include <stdint.h>
#include <string.h>

#include "exponential.h"

#if defined(__AVX512F__)
#define LANES 16 /* floats of a register: 32 registers hold the sums, a line of the panel and an element of x */
#define ROWS 12
#elif defined(__AVX__)
#define LANES 8 /* 16 registers */
#define ROWS 6
#else
#define LANES 4
#define ROWS 6
#endif
#define WIDE 2
#define COLUMNS (LANES * WIDE)
#define CHUNK 128  /* elements of K: with AVX-512 16 KiB of a panel */
#define STRETCH 16 /* elements of K between two groups of requests */
#define LINE 16    /* floats of a cache line */
#define GROUP 192  /* rows whose sums are kept until a panel has been read */

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));

const int64_t columns = COLUMNS;

/* x / (1 + e^-x) * other, in the place of x */
static inline void gate(float *x, const float *other) {
#pragma omp simd
    for (int i = 0; i < LANES; i++) {
        const float power = fabsf(x[i]) < 87 ? exponential(-fabsf(x[i])) : 0;
        x[i] = x[i] * (x[i] < 0 ? power : 1) / (1 + power) * other[i];
    }
}

/* Add a chunk's products to the ``sums`` of a tile, and ask for ``lines`` cache lines at ``next``. ``rows`` is a constant
   where this is expanded, so that all sums are in registers. */
static inline __attribute__((always_inline)) void tile(const int rows, const float *x, int64_t depth, const float *chunk,
                                                       int length, float (*sums)[COLUMNS], const float *next, int lines) {
    Lanes held[ROWS][WIDE];
    const int share = (lines * STRETCH + length - 1) / length;
    int asked = 0, k = 0;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < WIDE; v++) held[r][v] = *(const Lanes *)(sums[r] + v * LANES);
    for (; k + STRETCH <= length; k += STRETCH) {
        for (int end = asked + share < lines ? asked + share : lines; asked < end; asked++)
            __builtin_prefetch(next + asked * LINE, 0, 0);
        for (int i = k; i < k + STRETCH; i++)
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
                for (int v = 0; v < WIDE; v++)
                    held[r][v] += x[r * depth + i] * *(const Lanes *)(chunk + i * COLUMNS + v * LANES);
    }
    for (; k < length; k++)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < WIDE; v++)
                held[r][v] += x[r * depth + k] * *(const Lanes *)(chunk + k * COLUMNS + v * LANES);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < WIDE; v++) *(Lanes *)(sums[r] + v * LANES) = held[r][v];
}

/* Add ``rows`` rows' products with a chunk to their ``sums``; up to ``lines`` cache lines follow it. */
static void multiply(int rows, const float *x, int64_t depth, const float *chunk, int length, float (*sums)[COLUMNS],
                     int64_t lines) {
    const int tiles = (rows + ROWS - 1) / ROWS, asks = lines < length * COLUMNS / LINE ? lines : length * COLUMNS / LINE;
    const int share = (asks + tiles - 1) / tiles;
    for (int t = 0, row = 0; t < tiles; t++) {
        const int height = (rows - row + tiles - t - 1) / (tiles - t), from = t * share;
        const int own = asks - from < share ? asks - from : share;
#define OF(N) \
    case N: \
        tile(N, x + row * depth, depth, chunk, length, sums + row, chunk + length * COLUMNS + from * LINE, own); \
        break;
        switch (height) {
            OF(1) OF(2) OF(3) OF(4) OF(5) OF(6)
#if ROWS > 6
            OF(7) OF(8) OF(9) OF(10) OF(11) OF(12)
#endif
        }
        row += height;
    }
}

/* ``x`` [rows, depth]; ``panels`` [count][depth][COLUMNS], each with ``each`` columns of the result: COLUMNS, or half of
   them gated; ``bias`` [width] or NULL; ``out`` [rows, width]. */
void linear(const float *x, const float *panels, const float *bias, float *out, int64_t rows, int64_t width,
            int64_t depth, int64_t gated) {
    const int64_t each = gated ? COLUMNS / 2 : COLUMNS, count = (width + each - 1) / each;
    const float *end = panels + count * depth * COLUMNS;
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < count; p++) {
        const int64_t first = p * each, used = width - first < each ? width - first : each;
        const float *panel = panels + p * depth * COLUMNS;
        float start[COLUMNS] = {0}, sums[GROUP][COLUMNS];
        if (bias) memcpy(start, bias + first, used * sizeof(float));
        for (int64_t row = 0; row < rows; row += GROUP) {
            const int group = rows - row < GROUP ? rows - row : GROUP;
            for (int r = 0; r < group; r++) memcpy(sums[r], start, sizeof start);
            for (int64_t k = 0; k < depth; k += CHUNK) {
                const int length = depth - k < CHUNK ? depth - k : CHUNK;
                const float *chunk = panel + k * COLUMNS;
                multiply(group, x + row * depth + k, depth, chunk, length, sums, (end - chunk) / LINE - length * COLUMNS / LINE);
            }
            for (int r = 0; r < group; r++) {
                if (gated) gate(sums[r], sums[r] + LANES);
                memcpy(out + (row + r) * width + first, sums[r], used * sizeof(float));
            }
        }
    }
}
