// SPDX-License-Identifier: Apache-2.0

// Package labnode is what fault tests share whose nodes are on the hosts of a netlab: processes that take orders
// and may be killed, connections to the hosts' control planes, and a look at what nodes have left behind.
package labnode
