/* K and V of new tokens, float32, written into their slots: one call where plain torch makes one for each. */

#include <stdint.h>
#include <string.h>

#define MANY 65536 /* elements: below, a second thread starts later than the first one ends */

typedef struct {
    const float *rows;  /* [tokens, heads, dim] */
    float *cache;       /* [blocks, block_size, heads, dim] */
    int64_t from[2];    /* elements from a token, a head of the rows to the next */
    int64_t to[3];      /* elements from a block, a token, a head of the cache to the next */
    int64_t dim;
} Part;

typedef struct {
    Part parts[2];        /* K, V */
    const int64_t *slots; /* [tokens]: block * block_size + offset; a negative one skips the token */
    int64_t tokens, heads, block_size, blocks;
} Store;

/* Return 0, or 1 where a slot lies past the end: then nothing is written. */
int store_kv(const Store *a) {
    for (int64_t t = 0; t < a->tokens; t++)
        if (a->slots[t] >= a->blocks * a->block_size) return 1;
#pragma omp parallel for if (a->tokens * a->heads * a->parts[0].dim >= MANY)
    for (int64_t t = 0; t < a->tokens; t++) {
        const int64_t slot = a->slots[t], block = slot / a->block_size, within = slot % a->block_size;
        if (slot < 0) continue;
        for (int p = 0; p < 2; p++) {
            const Part *part = &a->parts[p];
            float *token = part->cache + block * part->to[0] + within * part->to[1];
            for (int64_t h = 0; h < a->heads; h++)
                memcpy(token + h * part->to[2], part->rows + t * part->from[0] + h * part->from[1],
                       part->dim * sizeof(float));
        }
    }
    return 0;
}
