"""The format of TFRecord files without TensorFlow: tf.train.Example messages, masked checksums."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from fastloop.core.optional_libraries import Library

INSTALL = "pip install crc32c protobuf"
MASK = 0xA282EAD8
"""The constant that is added to a checksum, see
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details"""


def check_installed(needed_by: str) -> None:
    """Raise Unsupported if a library that reads and writes the format is missing."""
    Library("crc32c", needed_by, INSTALL).check()


@cache
def example_class(needed_by: str) -> Any:
    """The class tf.train.Example, with features of bytes only."""
    # The descriptors are in their own pool: TensorFlow and the tfrecord package both register
    # theirs in the default pool, which rejects a second registration. The numbers of the fields
    # are those of tensorflow/core/example/feature.proto and example.proto.
    pb2 = Library("google", needed_by, INSTALL).load("google.protobuf.descriptor_pb2")
    pools = Library("google", needed_by, INSTALL).load("google.protobuf.descriptor_pool")
    factory = Library("google", needed_by, INSTALL).load("google.protobuf.message_factory")
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
    """Add a message type; fields are of type bytes (""), string ("str") or the named message."""
    kinds = pb2.FieldDescriptorProto
    message = messages.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        descriptor = message.field.add(name=field, number=number)
        descriptor.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        types = {"": kinds.TYPE_BYTES, "str": kinds.TYPE_STRING}
        descriptor.type = types.get(kind, kinds.TYPE_MESSAGE)
        if descriptor.type == kinds.TYPE_MESSAGE:
            descriptor.type_name = f".tensorflow.{kind}"
    return message


def import_crc32c(needed_by: str) -> Callable[[Any], int]:
    """Import the function that computes the CRC-32C of bytes."""
    return Library("crc32c", needed_by, INSTALL).load().crc32c


def mask_crc(crc: int) -> int:
    """A checksum as stored in TFRecord files: rotated by 15 bits, plus a constant."""
    # The CRC of data that contains CRCs itself is weak (crc32c.h of LevelDB, which began this).
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF
