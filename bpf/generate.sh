#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generate.sh NAME [FLAG...]: makes NAME_bpfel.o and NAME_bpfel.go of c/NAME.bpf.c.
set -eu
name=$1
ident=c$(echo "$name" | sed -E 's/(^|_)([a-z])/\u\2/g')
shift
exec go tool bpf2go -go-package bpf -tags linux -target bpfel -no-global-types \
	-cc "${BPF_CLANG:-clang-19}" -strip "${BPF_STRIP:-llvm-strip-19}" "$@" -output-stem "$name" "$ident" "c/$name.bpf.c" -- \
	-O2 -g -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Werror \
	"-I/usr/include/$(uname -m)-linux-gnu"
