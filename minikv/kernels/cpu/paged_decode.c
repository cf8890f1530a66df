/* Decode over paged K and V on a CPU: one new query a sequence, float32. Lesson 10.

   A task is a sequence and some of its KV heads. It walks the block table once, a tile of tokens at a time:

       logits of the tile   q K^T, each key read once for all query heads that share it
       online softmax       what was summed so far is scaled to the new maximum
       sums of the tile     + p V

   All heads of a token lie side by side, so that the pages are read in long runs, and each token is asked for AHEAD
   tokens before it is needed: a block may lie anywhere, which no processor foresees.

   Compiled once for a model's shape: DIM and V_DIM elements of a key and a value, GROUP query heads of a KV head, ROWS
   query heads of a task at the most. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "exponential.h"

#define TILE 32
#define AHEAD 4
#define LINE 16 /* floats of a cache line */

static inline void ask_for(const float *row, int elements) {
    for (int d = 0; d < elements; d += LINE) __builtin_prefetch(row + d, 0, 3);
}

typedef struct {
    const float *k, *v;           /* the pages */
    int64_t k_strides[3], v_strides[3]; /* elements from a block, a token, a head to the next */
    const int32_t *tables;        /* [sequences, width] */
    const int32_t *lengths;       /* [sequences] */
    const float *query;           /* [sequences, heads * GROUP, DIM] */
    const float *sinks;           /* [heads * GROUP], or NULL */
    float *out;                   /* [sequences, heads * GROUP, V_DIM] */
    float *lse;                   /* [sequences, heads * GROUP], or NULL */
    int64_t sequences, width, block_size, heads;
    int64_t heads_a_task;         /* divides heads; heads_a_task * GROUP <= ROWS */
    int64_t window;               /* tokens that are seen */
    float scale, softcap;         /* no cap where softcap is 0 */
} Decode;

static void attend(const Decode *a, int64_t sequence, int64_t first_head) {
    const int heads = a->heads_a_task, rows = heads * GROUP;
    const int32_t *table = a->tables + sequence * a->width;
    const int64_t length = a->lengths[sequence], start = length > a->window ? length - a->window : 0;
    const int64_t row = (sequence * a->heads + first_head) * GROUP, k_head = a->k_strides[2], v_head = a->v_strides[2];
    const float *query = a->query + row * DIM;
    const float *k = a->k + first_head * k_head, *v = a->v + first_head * v_head;
    const int k_run = heads == 1 || k_head == DIM ? heads * DIM : 0, v_run = heads == 1 || v_head == V_DIM ? heads * V_DIM : 0;
    float logits[ROWS][TILE], sums[ROWS][V_DIM], top[ROWS], total[ROWS];
    int64_t k_at[TILE + AHEAD], v_at[TILE];

    for (int r = 0; r < rows; r++) {
        /* A sink is a logit without a value. */
        top[r] = a->sinks ? a->sinks[first_head * GROUP + r] : -INFINITY;
        total[r] = a->sinks ? 1 : 0;
        memset(sums[r], 0, sizeof sums[r]);
    }
    for (int64_t first = start; first < length; first += TILE) {
        const int tokens = length - first < TILE ? length - first : TILE;
        const int known = length - first < TILE + AHEAD ? length - first : TILE + AHEAD;
        for (int t = 0; t < known; t++) {
            const int64_t block = table[(first + t) / a->block_size], within = (first + t) % a->block_size;
            k_at[t] = block * a->k_strides[0] + within * a->k_strides[1];
            if (t < tokens) v_at[t] = block * a->v_strides[0] + within * a->v_strides[1];
        }
        for (int t = 0; t < tokens; t++) {
            if (t + AHEAD < known) ask_for(k + k_at[t + AHEAD], k_run);
            ask_for(v + v_at[t], v_run);
            for (int r = 0; r < rows; r++) {
                const float *q = query + r * DIM, *key = k + k_at[t] + r / GROUP * k_head;
                float product = 0;
#pragma omp simd reduction(+ : product)
                for (int d = 0; d < DIM; d++) product += q[d] * key[d];
                logits[r][t] = product * a->scale;
            }
        }
        for (int r = 0; r < rows; r++) {
            if (a->softcap > 0)
                for (int t = 0; t < tokens; t++) logits[r][t] = a->softcap * tanhf(logits[r][t] / a->softcap);
            float before = top[r], sum = 0;
            for (int t = 0; t < tokens; t++) top[r] = logits[r][t] > top[r] ? logits[r][t] : top[r];
#pragma omp simd reduction(+ : sum)
            for (int t = 0; t < tokens; t++) {
                logits[r][t] = exponential(logits[r][t] - top[r]);
                sum += logits[r][t];
            }
            const float shrink = exponential(before - top[r]);
            total[r] = total[r] * shrink + sum;
            for (int d = 0; d < V_DIM; d++) sums[r][d] *= shrink;
        }
        for (int h = 0; h < heads; h++)
            for (int t = 0; t < tokens; t++) {
                const float *value = v + v_at[t] + h * v_head;
                for (int r = h * GROUP; r < (h + 1) * GROUP; r++) {
                    const float p = logits[r][t];
#pragma omp simd
                    for (int d = 0; d < V_DIM; d++) sums[r][d] += p * value[d];
                }
            }
    }
    for (int r = 0; r < rows; r++) {
        float *out = a->out + (row + r) * V_DIM;
        for (int d = 0; d < V_DIM; d++) out[d] = total[r] != 0 ? sums[r][d] / total[r] : 0;
        if (a->lse) a->lse[row + r] = total[r] != 0 ? top[r] + logf(total[r]) : -INFINITY;
    }
}

void paged_decode(const Decode *a) {
    const int64_t parts = a->heads / a->heads_a_task;
#pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < a->sequences * parts; task++)
        attend(a, task / parts, task % parts * a->heads_a_task);
}
