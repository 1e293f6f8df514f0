// SPDX-License-Identifier: Apache-2.0

// Package blobs keeps programs and uploaded inputs on disk under their digests
// until no job needs them. A blob is there whole or not at all.
package blobs
