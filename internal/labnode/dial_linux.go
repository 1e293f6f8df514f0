// SPDX-License-Identifier: Apache-2.0

package labnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quernmr/quern/shuffle/rpc"
)

// controlPort is where nodes answer what others ask.
const controlPort = 7118

// Dial connects to a host's control plane from a host where do runs a function, now and whenever it has to be done again.
func Dial(do func(func() error) error, to netip.Addr) (*grpc.ClientConn, error) {
	connect := func(ctx context.Context, address string) (conn net.Conn, err error) {
		err = do(func() error {
			// Dialled by this thread, so in the host: no second attempt by another one.
			d := net.Dialer{FallbackDelay: -1, Timeout: 2 * time.Second}
			conn, err = d.DialContext(ctx, "tcp", address)
			return err
		})
		return conn, err
	}
	return grpc.NewClient("passthrough:///"+netip.AddrPortFrom(to, controlPort).String(), grpc.WithContextDialer(connect),
		grpc.WithTransportCredentials(insecure.NewCredentials()), rpc.Reconnect())
}

// Service is what a host offers at its control plane, such as an rpc.Server.
type Service interface {
	Register(grpc.ServiceRegistrar)
}

// Serve answers at the control plane of the host of the calling thread, until stop is called.
func Serve(services ...Service) (stop func() error, err error) {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", controlPort))
	if err != nil {
		return nil, err
	}
	s, served := grpc.NewServer(), make(chan error, 1)
	for _, service := range services {
		service.Register(s)
	}
	go func() { served <- s.Serve(l) }()
	return func() error {
		s.Stop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	}, nil
}
