// SPDX-License-Identifier: Apache-2.0

package master

import (
	"context"
	"net"

	"google.golang.org/grpc/peer"
)

func peerContext(addr net.Addr) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{Addr: addr})
}
