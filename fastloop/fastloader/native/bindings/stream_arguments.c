/* Reads and checks the arguments of a Stream. */
#include "stream_type.h"

#include "arguments.h"

static int refuse_plan(const char *format, long long value) {
    fp_refuse(format, value);
    return 0;
}

/* Returns 0 with an error set for numbers that the core must not see. */
static int check_plan(const fl_plan *plan, const order_object *order) {
    int is_fed = order->order.kind == FL_FED;
    if (order->is_used || plan->start < 0 || (!is_fed && plan->start > order->order.length))
        return refuse_plan("start=%lld: outside of the order, or it is read by a stream",
                           plan->start);
    if (plan->batch_size < 0 || (!plan->batch_size && !is_fed) || (int64_t)plan->block_nbytes < 0)
        return refuse_plan("batch_size=%lld: allowed is 1 or more, and 0 where sizes are fed",
                           plan->batch_size);
    if (plan->num_threads < 0 || plan->max_blocks < 1)
        return refuse_plan("max_blocks=%lld: allowed is 1 or more", plan->max_blocks);
    return 1;
}

/* Reads the arguments into the object, which owns all objects that they refer to, and the numbers
 * of the plan. Returns 0 with an error set if an argument is wrong. */
static int read_arguments(stream_object *self, PyObject *args, PyObject *kwargs,
                          const module_state *state, fl_plan *plan) {
    static char *names[] = {"columns", "order", "pool", "calls", "delivered", "start",
                            "batch_size", "drop_last", "num_threads", "block_nbytes",
                            "max_blocks", "events", NULL};
    long long start, batch_size, block_nbytes;
    PyObject **owned[] = {&self->column_tuple, &self->order, &self->pool, &self->wrap,
                          &self->wrap_normally, &self->is_inference, &self->assemble, &self->pull,
                          &self->end};
    int is_read = PyArg_ParseTupleAndKeywords(
        args, kwargs, "O!O!O!(OOOOOO)w*LLpiLi|w*", names, &PyTuple_Type, &self->column_tuple,
        state->order, &self->order, state->pool, &self->pool, &self->wrap, &self->wrap_normally,
        &self->is_inference, &self->assemble, &self->pull, &self->end, &self->delivered, &start,
        &batch_size, &plan->drop_last, &plan->num_threads, &block_nbytes, &plan->max_blocks,
        &self->events);
    for (size_t k = 0; k < sizeof owned / sizeof *owned; k++)
        if (is_read)
            Py_INCREF(*owned[k]);
        else
            *owned[k] = NULL; /* stream_clear() must not drop it */
    if (is_read)
        plan->start = start, plan->batch_size = batch_size,
        plan->block_nbytes = (size_t)block_nbytes;
    return is_read;
}

/* The plan points into this object's fields and into the objects that it holds. */
int fp_read_plan(stream_object *self, PyObject *args, PyObject *kwargs, const module_state *state,
                 fl_plan *plan) {
    if (!read_arguments(self, args, kwargs, state, plan))
        return 0;
    if (self->delivered.len != sizeof(int64_t))
        return refuse_plan("delivered: %lld bytes, allowed is an int64", self->delivered.len);
    order_object *order = (order_object *)self->order;
    plan->order = &order->order;
    plan->pool = ((pool_object *)self->pool)->pool;
    /* Without the argument the buffer is empty: nothing is recorded. */
    plan->events = self->events.buf;
    plan->max_events = self->events.len / (Py_ssize_t)sizeof *plan->events;
    if (!check_plan(plan, order))
        return 0;
    self->columns = fp_read_columns(self->column_tuple, state->column);
    plan->columns = self->columns;
    plan->num_columns = (int)PyTuple_Size(self->column_tuple);
    return self->columns != NULL;
}
