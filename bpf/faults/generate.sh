#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generate.sh NAME [FLAG...]: makes NAME_bpfel.o and NAME_bpfel.go of c/NAME.bpf.c.
set -eu
name=$1
shift
exec go tool bpf2go -go-package faults -tags linux -target bpfel \
	-cc "${BPF_CLANG:-clang-19}" -strip "${BPF_STRIP:-llvm-strip-19}" "$@" "$name" "c/$name.bpf.c" -- \
	-O2 -g -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Werror \
	"-I/usr/include/$(uname -m)-linux-gnu"
