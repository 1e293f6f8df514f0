// SPDX-License-Identifier: Apache-2.0

//go:build !(386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64)

package bpf

// objects is empty: the layouts that programs share with Go are little-endian.
var objects map[string]object
