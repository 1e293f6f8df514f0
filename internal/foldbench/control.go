// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quernmr/quern/shuffle"
	"github.com/quernmr/quern/shuffle/rpc"
)

// The control plane between the two ends of streams is a cluster's, over a socket of
// the file system, which reaches from one network namespace to another.

// controlServer answers for a receiver.
type controlServer struct {
	server *grpc.Server
	served chan error
}

// serveControl answers until the server is closed.
func serveControl(path string, c shuffle.Control) (*controlServer, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	s := &controlServer{grpc.NewServer(), make(chan error, 1)}
	rpc.NewServer(c).Register(s.server)
	go func() { s.served <- s.server.Serve(l) }()
	return s, nil
}

// Close ends the server.
func (s *controlServer) Close() error {
	s.server.Stop()
	if err := <-s.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("control plane: %w", err)
	}
	return nil
}

// controlClient asks a receiver in another process. It opens a job and a target once,
// not for every push.
type controlClient struct {
	shuffle.Control
	conn *grpc.ClientConn
}

func dialControl(path string) (*controlClient, error) {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), rpc.Reconnect())
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	return &controlClient{rpc.Once(rpc.NewClient(conn)), conn}, nil
}

// Close breaks the connection.
func (c *controlClient) Close() error { return c.conn.Close() }
