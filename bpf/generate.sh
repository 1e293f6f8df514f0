#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generate.sh NAME [FLAG...]: makes NAME_bpfel.o and NAME_bpfel.go of c/NAME.bpf.c.
set -eu
name=$1
ident=c$(echo "$name" | sed -E 's/(^|_)([a-z])/\u\2/g')
shift
go tool bpf2go -go-package bpf -tags linux -target bpfel -no-global-types \
	-cc "${BPF_CLANG:-clang-19}" -strip "${BPF_STRIP:-llvm-strip-19}" "$@" -output-stem "$name" "$ident" "c/$name.bpf.c" -- \
	-O2 -g -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Werror \
	"-I/usr/include/$(uname -m)-linux-gnu"
# What line of C an instruction is of is two thirds of the largest object, and only verifier logs show it.
if [ "$name" = fold ]; then
	"${BPF_OBJCOPY:-llvm-objcopy-19}" --remove-section=.BTF.ext --remove-section=.rel.BTF.ext "${name}_bpfel.o"
fi
