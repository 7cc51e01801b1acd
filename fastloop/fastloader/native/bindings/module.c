/* The Python module of the native core, with its types and its function. The types are made from
 * specs and kept in the module's state (PEP 573), because the limited API has no static types. */
#include "types.h"

/* Returns 1, or 0 with an error set. */
static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type && !PyModule_AddType(module, *type);
}

static int module_exec(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    fp_count_forks();
    return add_type(module, &fp_column_spec, &state->column) &&
                   add_type(module, &fp_order_spec, &state->order) &&
                   add_type(module, &fp_pool_spec, &state->pool) &&
                   add_type(module, &fp_stream_spec, &state->stream)
               ? 0
               : -1;
}

/* The module holds its types, and each type its module: without this the collector could not see the
 * cycle, and would never free a module that has been imported again. */
static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    module_state *state = PyModule_GetState(module);
    if (!state) /* the module is collected before it has been executed */
        return 0;
    Py_VISIT(state->column);
    Py_VISIT(state->order);
    Py_VISIT(state->pool);
    Py_VISIT(state->stream);
    return 0;
}

static int module_clear(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    if (!state)
        return 0;
    Py_CLEAR(state->column);
    Py_CLEAR(state->order);
    Py_CLEAR(state->pool);
    Py_CLEAR(state->stream);
    return 0;
}

static PyMethodDef functions[] = {
    {"gather_into", fp_gather_into, METH_VARARGS,
     "gather_into(columns, indices, outs, num_threads): write rows to given memory."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_core",
    .m_doc = "The native core of FastLoader.",
    .m_size = sizeof(module_state),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
