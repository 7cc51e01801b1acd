"""What TFRecord files hold, without TensorFlow: tf.train.Example messages and masked checksums."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from fastloop.optional import check_found, imported

INSTALL = "pip install crc32c protobuf"
MASK = 0xA282EAD8
"""https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details"""


def check_installed(needed_by: str) -> None:
    """Raise Unsupported where what reads and writes them is absent."""
    check_found("crc32c", needed_by, INSTALL)


@cache
def example_class(needed_by: str) -> Any:
    """tf.train.Example with features of bytes, which are all that is written here.

    Its descriptors are in a pool of their own: TensorFlow and the tfrecord package each register
    theirs in the one of the process, which refuses the second of them.
    """
    pb2 = imported("google.protobuf.descriptor_pb2", needed_by, INSTALL)
    pools = imported("google.protobuf.descriptor_pool", needed_by, INSTALL)
    factory = imported("google.protobuf.message_factory", needed_by, INSTALL)
    file = pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    _message(pb2, file.message_type, "BytesList", {"value": ""}, repeated=True)
    _message(pb2, file.message_type, "Feature", {"bytes_list": "BytesList"})
    features = _message(
        pb2, file.message_type, "Features", {"feature": "Features.FeatureEntry"}, repeated=True
    )
    entry = _message(pb2, features.nested_type, "FeatureEntry", {"key": "str", "value": "Feature"})
    entry.options.map_entry = True
    _message(pb2, file.message_type, "Example", {"features": "Features"})
    pool = pools.DescriptorPool()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def _message(
    pb2: Any, messages: Any, name: str, fields: dict[str, str], repeated: bool = False
) -> Any:
    """One more message; its fields are bytes, strings, or messages of that name."""
    kinds = pb2.FieldDescriptorProto
    made = messages.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        one = made.field.add(name=field, number=number)
        one.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        one.type = {"": kinds.TYPE_BYTES, "str": kinds.TYPE_STRING}.get(kind, kinds.TYPE_MESSAGE)
        if one.type == kinds.TYPE_MESSAGE:
            one.type_name = f".tensorflow.{kind}"
    return made


def crc32c(needed_by: str) -> Callable[[Any], int]:
    """What gives the CRC-32C of bytes."""
    return imported("crc32c", needed_by, INSTALL).crc32c


def masked(crc: int) -> int:
    """A checksum as TFRecord keeps it: rotated by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF
