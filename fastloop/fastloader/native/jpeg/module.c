/* The Python module _jpeg, which makes samples of JPEG images; it uses only the limited API. */
#include "../bindings/limited_api.h"

#include <stdlib.h>
#include <string.h>

#include "transcode.h"

enum { LEFT, MADE, MAX_SIDE = 1 << 14 };

typedef struct {
    int are_paths;
    Py_ssize_t count;
    Py_buffer *images;  /* encoded images, or the paths of files, with a 0 at their ends */
    const uint64_t *keys;
    fj_crop crop;
    fj_format format;
    char *out;          /* memory for `count` samples */
    char *states;       /* for each of them MADE or LEFT */
} job;

static int is_path(const Py_buffer *buffer) {
    /* else the path of another file would be opened */
    return !memchr(buffer->buf, 0, (size_t)buffer->len);
}

/* Makes all samples without the interpreter's lock. Returns 0 if there is no memory for a
 * decoder. An image that is left to another decoder does not keep the others from being made. */
static int make_samples(const job *job) {
    fj_decoder *decoder = fj_open_decoder();
    fj_file file = {0};
    size_t nbytes = fj_sample_nbytes(&job->crop, &job->format);
    for (Py_ssize_t k = 0; decoder && k < job->count; k++) {
        const uint8_t *data = job->images[k].buf;
        size_t length = (size_t)job->images[k].len;
        int is_read = 1;
        if (job->are_paths) {
            is_read = is_path(&job->images[k]) && fj_read_file(&file, job->images[k].buf);
            data = file.data, length = file.nbytes;
        }
        is_read = is_read && fj_make_sample(decoder, data, length, &job->crop, &job->format,
                                            job->keys[k], job->out + (size_t)k * nbytes);
        job->states[k] = is_read ? MADE : LEFT;
    }
    free(file.data);
    fj_close_decoder(decoder);
    return decoder != NULL;
}

/* ---- arguments ---- */

/* Sets a ValueError and returns 0. */
static int refuse(const char *reason) {
    PyErr_SetString(PyExc_ValueError, reason);
    return 0;
}

/* Returns 0 with an error set for numbers that the decoder must not see. */
static int check_crop(const fj_crop *crop) {
    int is_random = crop->kind == FJ_RANDOM_RESIZED_CROP;
    if (crop->height < 1 || crop->height > MAX_SIDE || crop->width < 1 || crop->width > MAX_SIDE)
        return refuse("crop: allowed are sides of 1 to 16384");
    if (is_random && !(crop->min_area > 0 && crop->min_area <= crop->max_area &&
                       crop->min_ratio > 0 && crop->min_ratio <= crop->max_ratio))
        return refuse("crop: allowed are rising areas and ratios above 0");
    if (!is_random && (crop->kind != FJ_CENTER_CROP || crop->shorter_side > MAX_SIDE ||
                       crop->shorter_side < crop->height || crop->shorter_side < crop->width))
        return refuse("crop: its sides are at most the resized image's shorter one");
    return 1;
}

static int read_crop(PyObject *tuple, fj_crop *crop) {
    int kind;
    crop->applies_orientation = 0;
    if (!PyArg_ParseTuple(tuple, "i(ii)(dd)(dd)id|p", &kind, &crop->height, &crop->width,
                          &crop->min_area, &crop->max_area, &crop->min_ratio, &crop->max_ratio,
                          &crop->shorter_side, &crop->flip, &crop->applies_orientation))
        return 0;
    crop->kind = (fj_crop_kind)kind;
    return check_crop(crop);
}

static int read_format(PyObject *tuple, fj_format *format) {
    int type;
    float *factor = format->factor, *offset = format->offset;
    if (!PyArg_ParseTuple(tuple, "ip(fff)(fff)", &type, &format->channels_last, &factor[0],
                          &factor[1], &factor[2], &offset[0], &offset[1], &offset[2]))
        return 0;
    format->type = (fj_type)type;
    return (type >= FJ_U8 && type <= FJ_BF16) || refuse("format: allowed are 0, 1 and 2");
}

/* ---- make_samples ---- */

/* Returns a byte for each image, or NULL with an error set. */
static PyObject *run_checked(job *job, const Py_buffer *keys, const Py_buffer *out) {
    size_t nbytes = fj_sample_nbytes(&job->crop, &job->format), count = (size_t)job->count;
    if ((size_t)keys->len != count * sizeof *job->keys || (size_t)out->len != count * nbytes)
        return refuse("keys, out: allowed are one key, and the bytes of a sample, for each image"),
               NULL;
    job->keys = keys->buf;
    job->out = out->buf;
    /* calloc(0) may return NULL, which would mean no memory. */
    job->states = calloc(count + 1, 1);
    int is_made = 0;
    if (job->states) {
        Py_BEGIN_ALLOW_THREADS
        is_made = make_samples(job);
        Py_END_ALLOW_THREADS
    }
    PyObject *states = is_made ? PyBytes_FromStringAndSize(job->states, job->count) : NULL;
    free(job->states);
    return is_made ? states : PyErr_NoMemory();
}

/* Holds the images' buffers while the samples are made, so that their memory stays in place. */
static PyObject *run(job *job, PyObject *tuple, const Py_buffer *keys, const Py_buffer *out) {
    PyObject *states = NULL;
    Py_ssize_t opened = 0;
    job->count = PyTuple_Size(tuple);
    job->images = calloc((size_t)job->count + 1, sizeof *job->images);
    if (!job->images)
        return PyErr_NoMemory();
    while (opened < job->count && !PyObject_GetBuffer(PyTuple_GetItem(tuple, opened),
                                                      &job->images[opened], PyBUF_SIMPLE))
        opened++;
    if (opened == job->count)
        states = run_checked(job, keys, out);
    while (opened)
        PyBuffer_Release(&job->images[--opened]);
    free(job->images);
    return states;
}

static PyObject *make_samples_of(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *images, *crop, *format, *states = NULL;
    Py_buffer keys, out;
    job job = {0};
    if (!PyArg_ParseTuple(args, "O!py*O!O!w*", &PyTuple_Type, &images, &job.are_paths, &keys,
                          &PyTuple_Type, &crop, &PyTuple_Type, &format, &out))
        return NULL;
    if (read_crop(crop, &job.crop) && read_format(format, &job.format))
        states = run(&job, images, &keys, &out);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&out);
    return states;
}

/* ---- draw_cut ---- */

static PyObject *draw_cut_of(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *tuple;
    unsigned long long key;
    int height, width;
    fj_crop crop;
    if (!PyArg_ParseTuple(args, "O!Kii", &PyTuple_Type, &tuple, &key, &height, &width) ||
        !read_crop(tuple, &crop))
        return NULL;
    if (height < 1 || width < 1)
        return refuse("draw_cut: allowed are sides of 1 or more"), NULL;
    fj_cut cut = fj_draw_cut(&crop, key, height, width);
    fj_axis rows = cut.rows, columns = cut.columns;
    return Py_BuildValue("(iiiii)(iiiii)i", rows.start, rows.length, rows.resized, rows.first,
                         rows.count, columns.start, columns.length, columns.resized, columns.first,
                         columns.count, cut.is_flipped);
}

/* ---- transcode and read_orientation ---- */

static PyObject *transcode_of(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*", &data))
        return NULL;
    fj_file file = {0};
    int is_made;
    Py_BEGIN_ALLOW_THREADS
    is_made = fj_transcode(data.buf, (size_t)data.len, &file);
    Py_END_ALLOW_THREADS
    PyObject *bytes = is_made ? PyBytes_FromStringAndSize((char *)file.data, (Py_ssize_t)file.nbytes)
                              : Py_NewRef(Py_None);
    free(file.data);
    PyBuffer_Release(&data);
    return bytes;
}

static PyObject *read_orientation_of(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*", &data))
        return NULL;
    int orientation = fj_read_orientation(data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromLong(orientation);
}

/* ---- own_scan_problem ---- */

static PyObject *own_scan_problem_of(PyObject *module, PyObject *args) {
    (void)module, (void)args;
    return Py_BuildValue("z", fj_own_scan_problem());
}

static PyMethodDef functions[] = {
    {"make_samples", make_samples_of, METH_VARARGS,
     "make_samples(images, are_paths, keys, crop, format, out): a byte for each, 1 if it is made."},
    {"draw_cut", draw_cut_of, METH_VARARGS,
     "draw_cut(crop, key, height, width): (start, length, resized, first, count) of rows and of "
     "columns, and whether they are flipped."},
    {"own_scan_problem", own_scan_problem_of, METH_NOARGS,
     "own_scan_problem(): why libjpeg reads the codes of baseline JPEGs; None if it does not."},
    {"read_orientation", read_orientation_of, METH_VARARGS,
     "read_orientation(data): 1 to 8, as a JPEG's EXIF data states it; 1 without a statement."},
    {"transcode", transcode_of, METH_VARARGS,
     "transcode(data): the JPEG with restart markers; None if the pixels would differ."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_jpeg",
    .m_doc = "Samples of JPEG images, by libjpeg-turbo.",
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__jpeg(void) {
    fj_check_own_scan();
    return PyModuleDef_Init(&definition);
}
