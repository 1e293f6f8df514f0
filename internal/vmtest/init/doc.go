// SPDX-License-Identifier: Apache-2.0

// Command init is the first process of an emulated machine: it mounts what
// tests need, runs the plan of package vmtest and powers off.
package main
