"""Reading Zstandard files as a stream, several frames in a row, and noticing where one breaks off."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK = 1 << 20
# What `zstd --long=31` may ask for; the frame says how much of it is needed.
_MAX_WINDOW = 1 << 31


def open_zst(path: Path) -> io.BufferedReader:
    """The decompressed bytes of a `.zst` file. Reading raises OSError when the file is damaged or cut short."""
    return io.BufferedReader(_Frames(path.open("rb")), _BLOCK)


class _Frames(io.RawIOBase):
    # The package's own stream reader takes a file that breaks off in the middle for one that ends there.

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compressed = b""
        self._plain = memoryview(b"")
        self._frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._plain and self._step():
            pass
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def _step(self) -> bool:
        """Decompress one block more; False at the end of the file."""
        self._compressed = self._compressed or self._file.read(_BLOCK)
        if not self._compressed:
            if self._frame is not None:
                raise OSError("damaged zstd file (it breaks off in the middle of a frame)")
            return False
        if self._frame is None:
            self._frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
        try:
            self._plain = memoryview(self._frame.decompress(self._compressed))
        except zstandard.ZstdError as error:
            raise OSError(f"damaged zstd file ({error})") from None
        self._compressed = b""
        if self._frame.eof:
            self._compressed = self._frame.unused_data
            self._frame = None
        return True
