# SPDX-License-Identifier: Apache-2.0
#
# Makes reference.json: what the test of this example compares with. It shares no
# code with the example. Run it in this folder: python3 reference.py
#
# Different words are counted exactly, by sort -u. Quantiles are those of the sorted lengths
# (nearest rank). Beside that, a HyperLogLog in Python makes estimates from the same hash.

import glob
import json
import math
import os
import platform
import re
import subprocess

BOOKS = "../../../testdata/books/"
PRECISIONS = [4, 8, 10, 12, 14, 16]


def distinct_by_sort(files):
    pipeline = (
        "cat " + " ".join(files) + " | tr A-Z a-z | tr -c \"a-z'\" '\\n' |"
        " sed \"s/^'*//; s/'*$//\" | grep . | LC_ALL=C sort -u | wc -l"
    )
    return int(subprocess.run(pipeline, shell=True, check=True, capture_output=True).stdout)


def fmix64fnv(word):
    mask = 2**64 - 1
    h = 14695981039346656037
    for byte in word.encode():
        h = (h ^ byte) * 1099511628211 & mask
    h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCD & mask
    h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53 & mask
    return h ^ (h >> 33)


def hyperloglog(hashes, p):
    registers = [0] * 2**p
    for h in hashes:
        text = format(h, "064b")
        index, rest = int(text[:p], 2), text[p:]
        rank = rest.find("1") + 1 or len(rest) + 1
        registers[index] = max(registers[index], rank)
    m = len(registers)
    alpha = {16: 0.673, 32: 0.697, 64: 0.709}.get(m, 0.7213 / (1 + 1.079 / m))
    e = alpha * m * m / math.fsum(2.0**-r for r in registers)
    if e <= 2.5 * m and 0 in registers:
        e = m * math.log(m / registers.count(0))
    return round(e)


def sketch(files):
    words, lengths = [], []
    for f in files:
        for paragraph in re.split("\n{2,}", open(f, encoding="ascii").read()):
            if paragraph.strip():
                lengths.append(len(paragraph.strip()))
            found = (w.strip("'") for w in re.findall("[a-z']+", paragraph.lower()))
            words += [w for w in found if w]
    lengths.sort()
    rank = lambda percent: lengths[math.ceil(len(lengths) * percent / 100) - 1]
    distinct = distinct_by_sort(files)
    assert distinct == len(set(words))
    hashes = [fmix64fnv(w) for w in set(words)]
    return {
        "words": len(words),
        "distinct": distinct,
        "paragraphs": len(lengths),
        "median": rank(50),
        "p90": rank(90),
        "p99": rank(99),
        "estimates": {p: hyperloglog(hashes, p) for p in PRECISIONS},
    }


books = sorted(glob.glob(BOOKS + "*.txt"))
result = {os.path.basename(b): sketch([b]) for b in books}
result["(all)"] = sketch(books)
sort = subprocess.run(["sort", "--version"], capture_output=True, text=True).stdout.split("\n")[0]
json.dump(
    {"made_with": f"Python {platform.python_version()}, {sort}", "files": result},
    open("reference.json", "w"),
    indent=1,
)
