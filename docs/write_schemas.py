"""Writes the JSON Schemas of result.json and of a suite's file, beside the described classes.

`python docs/write_schemas.py`, or `make docs`, is run after a field or a docstring of these classes
has changed: the docstrings are the descriptions in the schemas.
"""

from fastloop.core import result_io
from fastloop.suite import suite_file

if __name__ == "__main__":
    result_io.SCHEMA_FILE.write_text(result_io.schema_text(), encoding="utf-8")
    suite_file.SCHEMA_FILE.write_text(suite_file.schema_text(), encoding="utf-8")
