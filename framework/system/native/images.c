/* Read a slice of images in one call: headers, then windows of JPEGs or of raw pixels.

   What is not the common case gets a status, and is left to Python, which knows the other formats and
   the errors. JPEGs are decoded by libjpeg-turbo, whose functions are given, because it is found at
   run time. */

#include <stdlib.h>
#include <time.h>

#include "scale.h"

enum { DONE, LEFT };                           /* the status of an image */
enum { MOST_PARTS = 10000, ORIENTATION = 0x0112, LYING = 5, MARGIN = 2 };
/* turbojpeg.h: enum TJINIT, TJPARAM, TJPF */
enum { DECOMPRESS = 1, SUBSAMPLING = 4, WIDTH = 5, HEIGHT = 6, PRECISION = 7, COLORSPACE = 8, LOSSLESS = 15 };
enum { RGB = 0, GRAY = 6 };

typedef struct {
    int num, denom;
} Factor;

typedef struct {
    int x, y, w, h;
} Region;

typedef struct {
    void *(*init)(int kind);
    int (*get)(void *handle, int parameter);
    int (*read_header)(void *handle, const uint8_t *data, size_t size);
    int (*set_factor)(void *handle, Factor factor);
    int (*set_region)(void *handle, Region region);
    int (*decompress)(void *handle, const uint8_t *data, size_t size, uint8_t *out, int pitch, int form);
    void (*destroy)(void *handle);
} Turbo;

typedef struct {
    int64_t top, left, height, width, flip;
} Cut;

/* A file, its header as framework/media/header.py returns it, and a window of it: a row of the table
   of media/scale.py. */
typedef struct {
    const uint8_t *data;
    int64_t size;
    int64_t height, width, channels, orientation; /* as stored */
    int64_t upright_height, upright_width;
    int64_t status, ns;                           /* ns: nanoseconds that it took */
    Cut cut;
    uint8_t *out;
    int64_t out_height, out_width;
} Image;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static uint32_t number(const uint8_t *at, int bytes, int little)
{
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[little ? bytes - 1 - i : i];
    return value;
}

/* Return the orientation of an EXIF note; 1 if it is missing or damaged. */
static int32_t orientation_of(const uint8_t *note, int64_t size)
{
    if (size < 8 || !((note[0] == 'I' && note[1] == 'I') || (note[0] == 'M' && note[1] == 'M')))
        return 1;
    int little = note[0] == 'I';
    int64_t at = number(note + 4, 4, little);
    if (at + 2 > size)
        return 1;
    int64_t count = number(note + at, 2, little);
    for (at += 2; count && at + 12 <= size; at += 12, count--) {
        uint32_t value = number(note + at + 8, 2, little);
        if (number(note + at, 2, little) == ORIENTATION && number(note + at + 2, 2, little) == 3 &&
            value >= 1 && value <= 8)
            return (int32_t)value;
    }
    return 1;
}

static int is_exif(const uint8_t *at)
{
    return at[0] == 'E' && at[1] == 'x' && at[2] == 'i' && at[3] == 'f' && !at[4] && !at[5];
}

/* Read the header of a JPEG of 8 bits. Return LEFT for all else. */
static int read_header(Image *image)
{
    const uint8_t *data = image->data;
    int64_t at = 2, size = image->size;
    int32_t orientation = 1;
    if (size < 3 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF)
        return LEFT;
    for (int part = 0; part < MOST_PARTS && at + 4 <= size && data[at] == 0xFF; part++) {
        uint8_t marker = data[at + 1];
        if (marker == 0xFF) { /* padding */
            at++;
            continue;
        }
        int64_t length = number(data + at + 2, 2, 0), end = at + 2 + length;
        if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
            if (at + 10 > size || data[at + 4] != 8)
                return LEFT;
            image->height = number(data + at + 5, 2, 0);
            image->width = number(data + at + 7, 2, 0);
            image->channels = data[at + 9];
            image->orientation = orientation;
            image->upright_height = orientation < LYING ? image->height : image->width;
            image->upright_width = orientation < LYING ? image->width : image->height;
            return image->height && image->width ? DONE : LEFT;
        }
        if (marker == 0xD9 || marker == 0xDA || length < 2)
            return LEFT;
        if (marker == 0xE1 && at + 10 <= size && is_exif(data + at + 4))
            orientation = orientation_of(data + at + 10, (end < size ? end : size) - at - 10);
        at = end;
    }
    return LEFT;
}

/* Read the headers of n files. A map reads its file only now. Files of more than so many pixels or
   channels are left. */
void paceline_image_headers(Image *images, int64_t n, int64_t most_pixels, int64_t most_channels)
{
    int64_t last = now();
    for (int64_t i = 0; i < n; i++) {
        Image *image = images + i;
        image->status = read_header(image);
        if (image->height * image->width > most_pixels || image->channels > most_channels)
            image->status = LEFT;
        int64_t time = now();
        image->ns = time - last;
        last = time;
    }
}

/* Width of a block of all components in pixels, by enum TJSAMP; 0 if it is none of ours. */
static int block_width(int subsampling)
{
    static const int widths[] = {8, 16, 16, 8, 8, 32, 8};
    return subsampling < 0 || subsampling > 6 ? 0 : widths[subsampling];
}

/* Return the denominator of the smallest scale at which a window covers its target: 1, 2, 4, 8. */
static int64_t denominator(const Image *image)
{
    int turned = (image->cut.flip & TURNED) != 0;
    int64_t height = turned ? image->out_width : image->out_height;
    int64_t width = turned ? image->out_height : image->out_width;
    for (int64_t d = 8; d > 1; d /= 2)
        if (image->cut.height >= d * height && image->cut.width >= d * width)
            return d;
    return 1;
}

/* Whether a window lies in an image: a user's transform may return any. */
static int is_inside(const Cut *cut, int64_t height, int64_t width)
{
    return cut->height > 0 && cut->height <= height && cut->top >= 0 && cut->top <= height - cut->height &&
           cut->width > 0 && cut->width <= width && cut->left >= 0 && cut->left <= width - cut->width &&
           cut->flip >= 0 && cut->flip <= (MIRRORED | UPSIDE_DOWN | TURNED);
}

static int64_t least(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

/* Decode one window of a JPEG, with the margin that interpolated colors need. */
static int decode(const Turbo *turbo, void *handle, const Image *image, const Scaling *scaling,
                  Memory *pixels, Memory *memory)
{
    const uint8_t *data = image->data;
    size_t size = (size_t)image->size;
    turbo->set_factor(handle, (Factor){1, 1});
    turbo->set_region(handle, (Region){0, 0, 0, 0});
    if (turbo->read_header(handle, data, size))
        return LEFT;
    int colors = turbo->get(handle, COLORSPACE), block = block_width(turbo->get(handle, SUBSAMPLING));
    if (colors < 0 || colors > 2 || turbo->get(handle, PRECISION) != 8 || turbo->get(handle, LOSSLESS) ||
        !block || turbo->get(handle, WIDTH) != image->width || turbo->get(handle, HEIGHT) != image->height)
        return LEFT;
    int64_t d = denominator(image);
    int64_t full_height = (image->height + d - 1) / d, full_width = (image->width + d - 1) / d;
    int64_t top = (image->cut.top + d / 2) / d, left = (image->cut.left + d / 2) / d;
    int64_t height = least(full_height - top, (image->cut.height + d / 2) / d);
    int64_t width = least(full_width - left, (image->cut.width + d / 2) / d);
    int64_t unit = block / d < 1 ? 1 : block / d;
    int64_t x = left < MARGIN ? 0 : (left - MARGIN) / unit * unit, y = top < MARGIN ? 0 : top - MARGIN;
    int64_t w = least(full_width, left + width + MARGIN) - x;
    int64_t h = least(full_height, top + height + MARGIN) - y;
    int64_t channels = scaling->channels;
    uint8_t *outer = paceline_memory(pixels, w * h * channels);
    if (!outer || turbo->set_factor(handle, (Factor){1, (int)d}) ||
        turbo->set_region(handle, (Region){(int)x, (int)y, (int)w, (int)h}) ||
        turbo->decompress(handle, data, size, outer, 0, channels == 3 ? RGB : GRAY))
        return LEFT;
    Window window = {outer + ((top - y) * w + left - x) * channels, height, width, w * channels,
                     channels, 1, image->cut.flip, image->out, image->out_height, image->out_width};
    return paceline_scale_window(&window, scaling, memory) ? LEFT : DONE;
}

/* Decode, cut and scale n JPEGs, except those that have a status. One that fails gets one, and a new
   handle follows, because one that met a damaged header reads no file again. Return how many have a
   status. */
int paceline_decode_jpegs(const Turbo *turbo, void **handle, Image *images, int64_t n, const Scaling *scaling)
{
    Memory pixels = {0}, memory = {0};
    int64_t last = now();
    int left = 0;
    for (int64_t i = 0; i < n; i++) {
        Image *image = images + i;
        if (image->status == DONE && image->orientation == 1 &&
            is_inside(&image->cut, image->height, image->width)) {
            image->status = decode(turbo, *handle, image, scaling, &pixels, &memory);
            if (image->status != DONE) {
                turbo->destroy(*handle);
                *handle = turbo->init(DECOMPRESS);
            }
        } else {
            image->status = LEFT;
        }
        left += image->status == LEFT;
        int64_t time = now();
        image->ns += time - last;
        last = time;
    }
    free(pixels.bytes);
    free(memory.bytes);
    return left;
}

/* A window of an image in memory: a row of the table of media/scale.py. */
typedef struct {
    const uint8_t *pixels; /* of the whole image */
    Cut cut;
    uint8_t *out;
    int64_t out_height, out_width;
    int64_t ns;            /* nanoseconds that it took */
} Job;

/* What all images of a slice share: their size, and the bytes from each row to the next, and so on. */
typedef struct {
    int64_t height, width, to_row, to_pixel, to_channel;
} Layout;

/* Scale n windows of images in memory. Return DONE, or LEFT if one of them cannot be done here. */
int paceline_scale_windows(Job *jobs, int64_t n, const Layout *layout, const Scaling *scaling)
{
    Memory memory = {0};
    int status = DONE;
    int64_t last = now();
    for (int64_t i = 0; i < n && status == DONE; i++) {
        Job *job = jobs + i;
        const Cut *cut = &job->cut;
        if (!is_inside(cut, layout->height, layout->width)) {
            status = LEFT;
            break;
        }
        const uint8_t *first = job->pixels + cut->top * layout->to_row + cut->left * layout->to_pixel;
        Window window = {first, cut->height, cut->width, layout->to_row, layout->to_pixel,
                         layout->to_channel, cut->flip, job->out, job->out_height, job->out_width};
        status = paceline_scale_window(&window, scaling, &memory) ? LEFT : DONE;
        int64_t time = now();
        job->ns = time - last;
        last = time;
    }
    free(memory.bytes);
    return status;
}
