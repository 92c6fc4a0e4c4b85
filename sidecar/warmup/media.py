"""Recordings and pictures that are made here, so that nothing is downloaded: a WAV file, a PNG file.

Knows formats, not what is done with them.
"""

from __future__ import annotations

import array
import base64
import math
import random
import struct
import sys
import zlib

#: What speech models resample everything to (Whisper's feature extractor). Samples a second.
SAMPLE_RATE = 16000
_PCM, _MONO, _BYTES_PER_SAMPLE = 1, 1, 2
_RGB, _BIT_DEPTH = 2, 8


def recording(seconds: float, rng: random.Random) -> bytes:
    """Make a WAV file of so many seconds, mono with 16 bits: hums of changing height with pauses, like speech.

    Silence alone would be skipped by a model that detects speech.
    """
    samples = array.array("h")
    total = max(1, int(seconds * SAMPLE_RATE))
    while len(samples) < total:
        pitch, length = rng.uniform(90, 260), rng.randint(SAMPLE_RATE // 20, SAMPLE_RATE // 4)
        loud = rng.choice((0.0, 0.5, 0.8))
        for index in range(min(length, total - len(samples))):
            angle = 2 * math.pi * pitch * index / SAMPLE_RATE
            wave = 0.6 * math.sin(angle) + 0.3 * math.sin(2 * angle) + 0.1 * math.sin(5 * angle)
            samples.append(int(loud * 12000 * wave * math.sin(math.pi * index / length)))
    if sys.byteorder == "big":
        samples.byteswap()
    data = samples.tobytes()
    rate = SAMPLE_RATE * _BYTES_PER_SAMPLE
    shape = struct.pack("<HHIIHH", _PCM, _MONO, SAMPLE_RATE, rate, _BYTES_PER_SAMPLE, 8 * _BYTES_PER_SAMPLE)
    return b"".join((
        b"RIFF", struct.pack("<I", 36 + len(data)), b"WAVE",
        b"fmt ", struct.pack("<I", len(shape)), shape,
        b"data", struct.pack("<I", len(data)), data,
    ))  # fmt: skip


def picture(width: int, height: int, rng: random.Random) -> bytes:
    """Make a PNG file of so many pixels: a slope of colours that differs from picture to picture."""
    start, slope = [rng.randrange(256) for _ in range(3)], [rng.randrange(1, 8) for _ in range(3)]
    row = bytes((start[column % 3] + (column // 3) * slope[column % 3]) % 256 for column in range(width * 3))
    # Each line begins with the number of its filter; none is used.
    lines = b"".join(b"\0" + row[3 * (y % width) :] + row[: 3 * (y % width)] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, _BIT_DEPTH, _RGB, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def data_url(png: bytes) -> str:
    """Write a PNG file into a URL, so that the engine need not fetch it."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
