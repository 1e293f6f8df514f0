# SPDX-License-Identifier: Apache-2.0
#
# Makes reference.json: what the test of this example compares with, by numpy.
# edges.txt was written by "go run ./examples/pagerank -make 1000"; run this in its folder:
# python3 reference.py

import json
import platform

import numpy

NODES, DAMPING, TOLERANCE = 1000, 0.85, 1e-10

edges = numpy.loadtxt("edges.txt", dtype=int)
walk = numpy.zeros((NODES, NODES))  # walk[to, from]: how likely a step leads there
numpy.add.at(walk, (edges[:, 1], edges[:, 0]), 1)
links = walk.sum(axis=0)
walk[:, links == 0] = 1
walk /= walk.sum(axis=0)

# Ranks are where a round changes nothing: rank = damping x walk rank + (1 - damping) / nodes.
ranks = numpy.linalg.solve(numpy.eye(NODES) - DAMPING * walk, numpy.full(NODES, (1 - DAMPING) / NODES))

# How many rounds it takes to come there from even ranks.
rounds, now, change = 0, numpy.full(NODES, 1 / NODES), 1
while change > TOLERANCE:
    then = DAMPING * walk @ now + (1 - DAMPING) / NODES
    rounds, now, change = rounds + 1, then, numpy.abs(then - now).sum()

json.dump(
    {
        "made_with": f"Python {platform.python_version()}, numpy {numpy.__version__}",
        "damping": DAMPING,
        "tolerance": TOLERANCE,
        "rounds": rounds,
        "without_links": int((links == 0).sum()),
        "ranks": ranks.tolist(),
    },
    open("reference.json", "w"),
    indent=0,
)
