/* Scaling of images, for those that are decoded and those that are stored raw. */

#include <stdint.h>

enum { LINEAR, ANTIALIASED, NEAREST };              /* how to scale */
enum { MIRRORED = 1, UPSIDE_DOWN = 2, TURNED = 4 }; /* how to turn: contracts/data.py */

/* Where the pixels of a window lie, and where they go. Of three channels, either those of a pixel are
   neighbors, or the pixels of a row are. */
typedef struct {
    const uint8_t *pixels;                    /* the first one */
    int64_t height, width;
    int64_t to_row, to_pixel, to_channel;     /* bytes from each to the next */
    int64_t flip;
    uint8_t *out;                             /* planes, or interleaved */
    int64_t out_height, out_width;
} Window;

typedef struct {
    int64_t channels;    /* 1 or 3 */
    int64_t how;
    int64_t interleaved; /* whether out is [h, w, C] */
    int64_t portable;    /* whether to do without AVX2, which gives the same bits */
} Scaling;

/* Memory that grows, and is used for one image after another. */
typedef struct {
    uint8_t *bytes;
    int64_t size;
} Memory;

/* Return memory for so many bytes, or NULL. */
uint8_t *paceline_memory(Memory *memory, int64_t size);

/* Return 0, or -1 if there is no memory, or if it shrinks by more than 1,000: weights would be too
   coarse. Memory is for tables and rows. */
int paceline_scale_window(const Window *window, const Scaling *scaling, Memory *memory);
