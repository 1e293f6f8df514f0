// SPDX-License-Identifier: Apache-2.0

// Package lloyd finds clusters of points by k-means, as an iteration: it is Lloyd's
// algorithm (Least squares quantization in PCM, 1982), cut in what a split of the
// points adds to a round's sums and what follows from the sums.
package lloyd
