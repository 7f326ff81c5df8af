"""Makes Spark's real-time shuffle listen on the driver's address instead of on all addresses.

Each task that writes to such a shuffle opens a server with `TransportContext.createServer()`. That
method has no parameter for the address, and neither `spark.driver.bindAddress` nor
`spark.authenticate` has an effect on it. So this module copies the class from the installed
pyspark, changes one instruction, and puts the copy in a jar that is first in the driver's class
path. The instruction loaded a null for the address; it becomes a call of `System.getProperty` for
`spark.driver.bindAddress`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from millstream.runtime.jars import cache_folder

_log = logging.getLogger(__name__)
_CLASS = "org/apache/spark/network/TransportContext.class"
_METHOD = (b"createServer", b"(ILjava/util/List;)Lorg/apache/spark/network/server/TransportServer;")
_PROPERTY = b"spark.driver.bindAddress"
# new TransportServer(this, null, port, this.rpcHandler, bootstraps): the null is the address.
_CODE = re.compile(rb"(\xbb..\x59\x2a)\x01(\x1b\x2a\xb4..\x2c\xb7..\xb0)", re.DOTALL)
# Tag → size in bytes of an entry in the constant pool; a text has its own length.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4}
_SIZES |= {15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_TEXT, _DOUBLE = 1, (5, 6)  # numbers of 8 bytes count as two entries


class NotPatched(Exception):
    """Why Spark's class could not be changed."""


def bound_jar(spark_jars: Path, *, make: bool = True) -> Path | None:
    """The jar to put first in the driver's class path; None, with a warning, if it can't be made.

    `spark_jars`: the folder with Spark's own jars. The jar is made once; later calls take a
    millisecond. With `make=False` the jar may not exist.
    """
    try:
        return make_jar(spark_jars, cache_folder().with_name("patched"), make=make)
    except (NotPatched, OSError, zipfile.BadZipFile) as error:
        _log.warning(
            "Spark's real-time shuffle listens on all addresses of this machine, without a login: "
            "its class cannot be changed: %s; let a firewall close its ports to others",
            error,
        )
        return None


def why_unbound(spark_jars: Path) -> str:
    """Why the shuffle would listen on all addresses; empty if it does not. Writes nothing."""
    try:
        _bound_class(spark_jars)
    except (NotPatched, OSError, zipfile.BadZipFile) as error:
        return str(error)
    return ""


def make_jar(spark_jars: Path, folder: Path, *, make: bool = True) -> Path:
    """The jar in `folder`, made if it is missing or incomplete; NotPatched, OSError."""
    changed = _bound_class(spark_jars)
    file = folder / f"spark-bind-{hashlib.sha256(changed).hexdigest()[:16]}.jar"
    if make and _content(file) != changed:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(fresh, "w") as jar:
            jar.writestr(zipfile.ZipInfo(_CLASS), changed)
        fresh.replace(file)
    return file


def bind_by_property(class_file: bytes) -> bytes:
    """The class with a `createServer` that binds to the address in a system property.

    NotPatched if the class is not the one that this code expects.
    """
    try:
        texts, count, pool_end = _constants(class_file)
        start, attribute = _code_of(class_file, texts, pool_end)
    except (struct.error, IndexError, KeyError) as error:
        raise NotPatched("it is not a class file in a known format") from error
    (length,) = struct.unpack_from(">I", attribute, 4)
    code = _CODE.fullmatch(attribute[8 : 8 + length])
    if code is None or attribute[8 + length : 10 + length] != b"\0\0":
        raise NotPatched("its method createServer is not the expected one")
    called = struct.pack(">BHBH", 0x13, count + 1, 0xB8, count + 7)  # ldc_w, invokestatic
    fresh = code[1] + called + code[2]
    # No exception table, and no attributes for debuggers.
    body = attribute[:4] + struct.pack(">I", len(fresh)) + fresh + b"\0\0\0\0"
    end = start + 4 + len(attribute)
    return b"".join(
        (
            class_file[:8],
            struct.pack(">H", count + 8),
            class_file[10:pool_end],
            _call(count),
            class_file[pool_end:start],
            struct.pack(">I", len(body)) + body,
            class_file[end:],
        )
    )


def _bound_class(spark_jars: Path) -> bytes:
    source = next(iter(sorted(spark_jars.glob("spark-network-common_*.jar"))), None)
    if source is None:
        raise NotPatched(f"there is no spark-network-common jar in {spark_jars}")
    try:
        with zipfile.ZipFile(source) as jar:
            return bind_by_property(jar.read(_CLASS))
    except KeyError as error:
        raise NotPatched(f"{source.name} has no {_CLASS}") from error


def _content(file: Path) -> bytes:
    try:
        with zipfile.ZipFile(file) as jar:
            return jar.read(_CLASS)
    except (OSError, KeyError, zipfile.BadZipFile):
        return b""


def _call(first: int) -> bytes:
    """Eight constants, numbered from `first`: the property's name and `System.getProperty`."""

    def text(value: bytes) -> bytes:
        return struct.pack(">BH", _TEXT, len(value)) + value

    return b"".join(
        (
            text(_PROPERTY),
            struct.pack(">BH", 8, first),  # a String
            text(b"java/lang/System"),
            struct.pack(">BH", 7, first + 2),  # a Class
            text(b"getProperty"),
            text(b"(Ljava/lang/String;)Ljava/lang/String;"),
            struct.pack(">BHH", 12, first + 4, first + 5),  # a NameAndType
            struct.pack(">BHH", 10, first + 3, first + 6),  # a Methodref
        )
    )


def _constants(class_file: bytes) -> tuple[dict[int, bytes], int, int]:
    """The texts of the constant pool by number, the number of entries, and the end's offset."""
    magic, _, count = struct.unpack_from(">IIH", class_file, 0)
    if magic != 0xCAFEBABE:
        raise NotPatched("it is not a class file")
    texts: dict[int, bytes] = {}
    number, at = 1, 10
    while number < count:
        tag = class_file[at]
        if tag == _TEXT:
            (length,) = struct.unpack_from(">H", class_file, at + 1)
            texts[number] = class_file[at + 3 : at + 3 + length]
            at += 3 + length
        else:
            at += 1 + _SIZES[tag]
        number += 2 if tag in _DOUBLE else 1
    return texts, count, at


def _code_of(class_file: bytes, texts: dict[int, bytes], at: int) -> tuple[int, bytes]:
    """The Code attribute of the method: the offset of its length, and its content."""
    (interfaces,) = struct.unpack_from(">H", class_file, at + 6)
    at += 8 + 2 * interfaces
    for _ in ("fields", "methods"):
        (members,) = struct.unpack_from(">H", class_file, at)
        at += 2
        for _ in range(members):
            _, name, kind, attributes = struct.unpack_from(">4H", class_file, at)
            at += 8
            for attribute, start, length in _attributes(class_file, at, attributes):
                at = start + 4 + length
                if (texts[name], texts[kind]) == _METHOD and texts[attribute] == b"Code":
                    return start, class_file[start + 4 : at]
    raise NotPatched("it has no method createServer(int, List)")


def _attributes(class_file: bytes, at: int, count: int) -> Iterator[tuple[int, int, int]]:
    """For each attribute: the number of its name, the offset of its length, and the length."""
    for _ in range(count):
        name, length = struct.unpack_from(">HI", class_file, at)
        yield name, at + 2, length
        at += 6 + length
