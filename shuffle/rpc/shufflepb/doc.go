// SPDX-License-Identifier: Apache-2.0

// Package shufflepb is the messages and the services of package rpc, made from
// shuffle.proto.
package shufflepb

//go:generate ../../../scripts/protoc shuffle.proto
