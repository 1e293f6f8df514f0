// SPDX-License-Identifier: Apache-2.0

// Package api is the control plane's messages and services, made from
// cluster.proto: what submitters, workers and a master say to each other by
// gRPC. Payloads that only a job's own program makes and reads (plans,
// manifests) are JSON of package task within it.
package api

//go:generate ../../../scripts/protoc cluster.proto

// Protocol is the version of these messages. A master refuses workers and
// clients of another.
const Protocol = 1
