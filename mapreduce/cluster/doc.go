// SPDX-License-Identifier: Apache-2.0

// Package cluster is how programs have a cluster run their jobs, and follow them.
//
//	client, err := cluster.Dial(ctx, "master:7119", cluster.DialOptions{Certs: "/etc/quern", Token: token})
//	...
//	handle, err := client.Submit(ctx, job, options, cluster.SubmitOptions{})
//	...
//	result, err := handle.Wait(ctx, nil)
//
// Code does not travel as source: Submit sends the running program itself, which must be
// one static file, and its arguments. Workers run it for every task, up to the same call of Submit, which
// then does that task in place of submitting anything. So what comes before the call
// must not depend on the machine, and must not fail where a worker has no rights (Dial connects to nobody
// there, and reads no certificates).
package cluster
