# SPDX-License-Identifier: Apache-2.0
#
# Makes reference.json: what the test of this example compares with, by scikit-learn.
# rows.csv was written by "go run ./examples/logreg -make 3000"; run this in its folder:
# python3 reference.py

import json
import platform

import numpy
import sklearn
from sklearn.linear_model import LogisticRegression

data = numpy.loadtxt("rows.csv", delimiter=",")
y, x = data[:, 0], data[:, 1:]


def optimum(ridge):
    # scikit-learn makes C x sum of losses + |w|^2 / 2 small, without the bias.
    model = LogisticRegression(C=1 / (ridge * len(y)), solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(x, y)
    w, bias = model.coef_[0], model.intercept_[0]
    loss = numpy.logaddexp(0, numpy.where(y == 1, -1, 1) * (x @ w + bias)).mean() + ridge / 2 * w @ w
    return {
        "ridge": ridge,
        "bias": bias,
        "weights": w.tolist(),
        "loss": loss,
        "accuracy": model.score(x, y),
    }


json.dump(
    {
        "made_with": f"Python {platform.python_version()}, numpy {numpy.__version__}, scikit-learn {sklearn.__version__}",
        "optima": [optimum(r) for r in (0.001, 0.1)],
    },
    open("reference.json", "w"),
    indent=1,
)
