# SPDX-License-Identifier: Apache-2.0
#
# Makes reference.json: what the test of this example compares with, by scikit-learn.
# points.csv was written by "go run ./examples/kmeans -make 2000" (see README.md); run
# this in its folder: python3 reference.py

import json
import platform

import numpy
import sklearn
from sklearn.cluster import KMeans

points = numpy.loadtxt("points.csv", delimiter=",")


def case(init, max_iter=300):
    init = numpy.array(init)
    model = KMeans(
        n_clusters=len(init), init=init, n_init=1, tol=0, max_iter=max_iter, algorithm="lloyd"
    ).fit(points)
    return {
        "start": init.tolist(),
        "rounds": model.n_iter_,
        "centroids": model.cluster_centers_.tolist(),
        "points": numpy.bincount(model.labels_, minlength=len(init)).tolist(),
        "inertia": model.inertia_,
    }


# None of these lets a cluster become empty: scikit-learn would give it a point far from others, and the
# example leaves it where it is.
json.dump(
    {
        "made_with": f"Python {platform.python_version()}, numpy {numpy.__version__}, scikit-learn {sklearn.__version__}",
        "cases": [
            case(points[:1]),
            case(points[:8]),
            case(points[[0, 700, 1400]]),
            case([[0.0, 0.0], [0.0, 100.0], [50.0, 50.0], [100.0, 100.0], [50.0, 100.0]]),
            case(points[::100]),
        ],
    },
    open("reference.json", "w"),
    indent=1,
)
