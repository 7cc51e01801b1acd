/* The structures of DLPack's binary interface before version 1.0, through which libraries
 * exchange tensors. The names are this project's, the layout is dlpack.h's. */
#ifndef FASTLOOP_DLPACK_H
#define FASTLOOP_DLPACK_H

#include <stdint.h>

typedef struct {
    int32_t type; /* 1: memory of the CPU */
    int32_t number;
} dl_device;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} dl_type;

typedef struct {
    void *data;
    dl_device device;
    int32_t num_dimensions;
    dl_type type;
    int64_t *shape;
    int64_t *strides; /* counted in items */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed_tensor {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed_tensor *); /* called once, by any thread */
} dl_managed_tensor;

#endif
