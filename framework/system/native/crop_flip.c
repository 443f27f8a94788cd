/* Crop uint8 images [B, C, H, W] with a black margin, mirror them, and normalize them to float32,
   in one pass over the batch.

   The product is rounded before the sum, so that the numbers equal those of torch's two kernels on
   any device. Compile with -ffp-contract=off, because a fused multiply-add rounds only once. */

#include <stdint.h>

#include "batch.h"

typedef struct {
    const uint8_t *image;
    int64_t channels, height, width, padding;
    const int64_t *offsets;      /* [B, 2]: rows down, columns right, 0 to 2 * padding; or NULL */
    const uint8_t *mirror;       /* [B], or NULL to mirror none */
    const float *scale, *shift;  /* [C], or NULL for a uint8 result */
    void *out;
} Job;

FASTEST static void normalize(const uint8_t *in, int64_t count, float scale, float shift,
                              float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)in[i] * scale + shift;
}

FASTEST static void normalize_mirrored(const uint8_t *in, int64_t count, float scale, float shift,
                               float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[count - 1 - i] = (float)in[i] * scale + shift;
}

static void normalize_row(const uint8_t *in, int64_t first, int64_t stop, int64_t width,
                          int mirrored, float scale, float shift, float *out)
{
    float black = 0.0f * scale + shift;
    int64_t before = mirrored ? width - stop : first, count = stop - first;
    for (int64_t i = 0; i < before; i++)
        out[i] = black;
    (mirrored ? normalize_mirrored : normalize)(in, count, scale, shift, out + before);
    for (int64_t i = before + count; i < width; i++)
        out[i] = black;
}

static void copy_row(const uint8_t *in, int64_t first, int64_t stop, int64_t width, int mirrored,
                     uint8_t *out)
{
    int64_t before = mirrored ? width - stop : first, count = stop - first;
    for (int64_t i = 0; i < before; i++)
        out[i] = 0;
    for (int64_t i = 0; i < count; i++)
        out[before + i] = in[mirrored ? count - 1 - i : i];
    for (int64_t i = before + count; i < width; i++)
        out[i] = 0;
}

/* Do one image. The source has the columns first to stop of a row of the unmirrored result. */
static void record(const void *given, int64_t number)
{
    const Job *job = given;
    int64_t down = 0, right = 0, height = job->height, width = job->width;
    int mirrored = job->mirror && job->mirror[number];
    if (job->offsets) {
        down = job->offsets[2 * number] - job->padding;
        right = job->offsets[2 * number + 1] - job->padding;
    }
    int64_t first = right < 0 ? -right : 0, stop = right > 0 ? width - right : width;
    if (first >= stop)
        first = stop = width;
    for (int64_t c = 0; c < job->channels; c++) {
        int64_t plane = (number * job->channels + c) * height * width;
        for (int64_t y = 0; y < height; y++) {
            int there = y + down >= 0 && y + down < height;
            int64_t from = plane + (there ? (y + down) * width + first + right : 0);
            int64_t at = plane + y * width, begin = there ? first : width;
            int64_t end = there ? stop : width;
            /* An empty row reads nothing. */
            const uint8_t *in = begin == end ? job->image : job->image + from;
            if (job->scale)
                normalize_row(in, begin, end, width, mirrored, job->scale[c], job->shift[c],
                              (float *)job->out + at);
            else
                copy_row(in, begin, end, width, mirrored, (uint8_t *)job->out + at);
        }
    }
}

void paceline_crop_flip(const uint8_t *image, int64_t batch, int64_t channels, int64_t height,
                        int64_t width, int64_t padding, const int64_t *offsets,
                        const uint8_t *mirror, const float *scale, const float *shift, void *out,
                        int threads)
{
    Job job = {image, channels, height, width, padding, offsets, mirror, scale, shift, out};
    each_record(record, &job, batch, threads);
}
