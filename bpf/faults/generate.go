// SPDX-License-Identifier: Apache-2.0

package faults

// The objects are committed, so that building needs no clang.
//
//go:generate ./generate.sh wire -type faults_held
//go:generate ./generate.sh ends -type address
