// SPDX-License-Identifier: Apache-2.0

// Package netlab makes a network of several hosts on one machine, and spoils it.
//
// A host is a network namespace with an interface eth0, an IPv4 and an IPv6
// address. A bridge in a namespace of its own joins the hosts, so that nothing
// touches the machine's own network. Links are veths whose far ends have an XDP
// program, so that XDP runs natively in hosts and what XDP_TX sends arrives.
// On request the links lose, double, damage, reorder and delay packets, or are cut.
//
// A lab needs Linux and root's rights there; see Available. It ends with Close,
// and with its process, however that ends.
package netlab
