// SPDX-License-Identifier: Apache-2.0

package castlab

import (
	"context"
	"errors"
	"net/netip"

	"github.com/quernmr/quern/internal/labnode"
	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/shuffle/broadcast"
)

// order is a line that a node's process reads: one of its fields is set.
type order struct {
	Set    *settings `json:",omitempty"` // for what comes next
	Report string    `json:",omitempty"` // say what came of that name
	LetGo  bool      `json:",omitempty"` // of what was retained
	Send   *sending  `json:",omitempty"` // be a source
}

type settings struct {
	Have   []string
	Retain bool
}

// sending has a process give a content to members.
type sending struct {
	Spec    spread
	Members []netip.Addr
}

// reply is a line that it writes: the answer to an order.
type reply struct {
	Parts []Part   `json:",omitempty"`
	Open  []string `json:",omitempty"` // what is open in the memory that programs share
	Error string   `json:",omitempty"`
}

// ChildMain is such a process's main, which takes broadcasts until standard input ends; false if it is none.
func ChildMain() bool { return labnode.Child(serve) }

func serve(cfg NodeConfig, orders *labnode.Orders) (err error) {
	n, err := openNode(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := orders.Ready(); err != nil {
		return err
	}
	for {
		var o order
		if orders.Next(&o) != nil {
			return nil
		}
		var r reply
		var failed error
		switch {
		case o.Set != nil:
			n.ledger.set(o.Set.Have, o.Set.Retain)
		case o.Report != "":
			r.Parts, r.Open = n.ledger.of(o.Report), n.open()
		case o.LetGo:
			failed = n.ledger.letGo()
		case o.Send != nil:
			failed = n.send(o.Send)
		}
		if failed != nil {
			r.Error = failed.Error()
		}
		if err := orders.Answer(r); err != nil {
			return err
		}
	}
}

// child is a node's process.
type child struct{ *labnode.Process }

func startChild(host *netlab.Host, cfg NodeConfig) (*child, error) {
	p, err := labnode.Start(host, cfg)
	if err != nil {
		return nil, err
	}
	return &child{p}, nil
}

// ask gives an order and waits for the answer.
func (c *child) ask(o order) (r reply, err error) {
	if err = c.Ask(o, &r); err == nil && r.Error != "" {
		err = errors.New(r.Error)
	}
	return r, err
}

// send is what a process does that is a source.
func (n *node) send(s *sending) error {
	var members []broadcast.Member
	for _, a := range s.Members {
		m, closeConn, err := memberAt(func(f func() error) error { return f() }, a)
		if err != nil {
			return err
		}
		defer closeConn()
		members = append(members, m)
	}
	_, err := n.node.Spread(context.Background(), s.Spec.spec(members))
	return err
}
