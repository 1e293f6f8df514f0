// SPDX-License-Identifier: Apache-2.0

package allreduce_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/quernmr/quern/shuffle/allreduce"
	"github.com/quernmr/quern/shuffle/receive"
)

// open makes what each process has: a socket that frames come to, a port for streams, and a node.
func open() (*allreduce.Node, *receive.Receiver, error) {
	var node atomic.Pointer[allreduce.Node]
	frames, err := receive.New(receive.Options{Listen: "127.0.0.1", Readers: 1, Other: func(frame []byte, from netip.AddrPort) {
		if n := node.Load(); n != nil {
			n.Handle(frame, from)
		}
	}})
	if err != nil {
		return nil, nil, err
	}
	streams, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	// With a kernel's help (package bpf), Kernel and Jobs are set, too, of both.
	n, err := allreduce.New(allreduce.Options{Port: frames.Port(), Send: frames.SendFrames, Streams: streams})
	if err != nil {
		return nil, nil, err
	}
	node.Store(n)
	return n, frames, nil
}

// Processes form a group over a network. One of them, or another one, does so: it asks each member's Control, which gRPC carries
// (rpc.NewReduceServer(node.Control()) at the member, rpc.NewReduceClient here), and tells the members the token. In
// this example all are one process.
func ExampleForm() {
	ctx := context.Background()
	spec := allreduce.FormSpec{Name: "gradients"}
	if _, err := rand.Read(spec.Secret[:]); err != nil {
		panic(err)
	}
	var nodes []*allreduce.Node
	for i := range 3 {
		node, frames, err := open()
		if err != nil {
			panic(err)
		}
		defer node.Close()
		defer frames.Close() // before its node: it feeds it
		nodes = append(nodes, node)
		spec.Members = append(spec.Members, allreduce.Member{
			Name:    fmt.Sprint("process ", i),
			Address: netip.MustParseAddrPort("127.0.0.1:0"), // it says its port
			Control: node.Control(),
		})
	}
	formed, err := allreduce.Form(ctx, spec)
	if err != nil {
		panic(err)
	}
	defer formed.Close(ctx)

	var all sync.WaitGroup
	sums := make([][]int64, len(nodes))
	for i, node := range nodes {
		all.Go(func() {
			group, err := node.Group(formed.Token)
			if err != nil {
				panic(err)
			}
			sums[i] = []int64{1, int64(i), 100 * int64(group.Rank())}
			if err := allreduce.AllReduce(ctx, group, allreduce.Sum, sums[i]); err != nil {
				panic(err)
			}
		})
	}
	all.Wait()
	fmt.Println(sums)
	// Output: [[3 3 300] [3 3 300] [3 3 300]]
}
