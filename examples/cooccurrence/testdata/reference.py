# SPDX-License-Identifier: Apache-2.0
#
# Makes reference.json: what the test of this example compares with. It shares no
# code with the example. Run it in this folder: python3 reference.py

import collections
import glob
import hashlib
import json
import platform
import re

WINDOW = 5

count, weight = collections.Counter(), collections.Counter()
words_seen = 0
for book in sorted(glob.glob("../../../testdata/books/*.txt")):
    text = open(book, encoding="ascii").read().lower()
    for paragraph in text.split("\n\n"):
        words = [w.strip("'") for w in re.findall("[a-z']+", paragraph)]
        words = [w for w in words if w]
        words_seen += len(words)
        for i, a in enumerate(words):
            for d in range(1, WINDOW + 1):
                if i + d < len(words):
                    pair = tuple(sorted((a, words[i + d])))
                    count[pair] += 1
                    weight[pair] += WINDOW + 1 - d

rows = "".join(f"{a}\t{b}\t{count[a, b]}\t{weight[a, b]}\n" for a, b in sorted(count))
top = sorted(count, key=lambda p: (-weight[p], p))[:20]
json.dump(
    {
        "made_with": f"Python {platform.python_version()}, collections.Counter",
        "window": WINDOW,
        "words": words_seen,
        "pairs": count.total(),
        "weight": weight.total(),
        "rows": len(count),
        "sha256_of_rows": hashlib.sha256(rows.encode()).hexdigest(),
        "top": [[a, b, count[a, b], weight[a, b]] for a, b in top],
    },
    open("reference.json", "w"),
    indent=1,
)
