// SPDX-License-Identifier: Apache-2.0

// Package api is the control plane's messages and services, made from
// cluster.proto: what submitters, workers and a master say to each other by
// gRPC. Payloads that only a job's own program makes and reads (plans,
// manifests) are JSON of package task within it.
package api

//go:generate protoc -I . --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative cluster.proto

// Protocol is the version of these messages. A master refuses workers and
// clients of another.
const Protocol = 1
