/* uint8 images [B, C, H, W]: cut out of a black margin, mirrored, and normalized to float32, in one pass over the batch.

   A product, rounded, then a sum, rounded, so that the numbers are those of torch's two kernels on any device: to be compiled with
   -ffp-contract=off, since a fused multiply-add rounds once. */

#include <stdint.h>
#include <string.h>

#define WIDEST 8192  /* pixels of a row, kept on the stack */

typedef struct {
    const uint8_t *image;
    int64_t channels, height, width, padding;
    const int64_t *offsets;  /* [B, 2]: rows down, columns right, 0 to 2 * padding; NULL: padding of each */
    const uint8_t *mirror;   /* [B]; NULL: none */
    const float *scale, *shift;  /* [C]; NULL: the result is uint8 */
    void *out;
} Job;

static void reverse(uint8_t *row, int64_t width)
{
    for (int64_t i = 0; i < width / 2; i++) {
        uint8_t kept = row[i];
        row[i] = row[width - 1 - i];
        row[width - 1 - i] = kept;
    }
}

/* One row of the result, as bytes: source row y, begun right columns further, black where there is no source. */
static void cut(const Job *job, const uint8_t *plane, int64_t y, int64_t right, uint8_t *row)
{
    int64_t width = job->width, first = right < 0 ? -right : 0, stop = right > 0 ? width - right : width;
    if (y < 0 || y >= job->height || first >= stop) {
        memset(row, 0, (size_t)width);
        return;
    }
    memset(row, 0, (size_t)first);
    memcpy(row + first, plane + y * width + right + first, (size_t)(stop - first));
    memset(row + stop, 0, (size_t)(width - stop));
}

static void record(const Job *job, int64_t number)
{
    uint8_t row[WIDEST];
    int64_t down = 0, right = 0, area = job->height * job->width;
    int mirrored = job->mirror && job->mirror[number];
    if (job->offsets) {
        down = job->offsets[2 * number] - job->padding;
        right = job->offsets[2 * number + 1] - job->padding;
    }
    for (int64_t c = 0; c < job->channels; c++) {
        int64_t plane = (number * job->channels + c) * area;
        for (int64_t y = 0; y < job->height; y++) {
            int64_t at = plane + y * job->width;
            cut(job, job->image + plane, y + down, right, row);
            if (mirrored)
                reverse(row, job->width);
            if (!job->scale) {
                memcpy((uint8_t *)job->out + at, row, (size_t)job->width);
                continue;
            }
            float *out = (float *)job->out + at, scale = job->scale[c], shift = job->shift[c];
            for (int64_t x = 0; x < job->width; x++)
                out[x] = (float)row[x] * scale + shift;
        }
    }
}

/* Returns -1 and writes nothing where a row is too wide. */
int paceline_crop_flip(const uint8_t *image, int64_t batch, int64_t channels, int64_t height, int64_t width, int64_t padding,
                       const int64_t *offsets, const uint8_t *mirror, const float *scale, const float *shift, void *out, int threads)
{
    Job job = {image, channels, height, width, padding, offsets, mirror, scale, shift, out};
    if (width > WIDEST)
        return -1;
    if (threads < 2) {
        for (int64_t i = 0; i < batch; i++)
            record(&job, i);
        return 0;
    }
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < batch; i++)
        record(&job, i);
    return 0;
}
