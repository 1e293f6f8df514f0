// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/cluster/identity"
	"github.com/quernmr/quern/mapreduce/task"
)

// Port is where a master takes calls if nothing else is said.
const Port = 7119

// maxMessage bounds a message of the master, in bytes. A status of a large job may be longer
// than the 4 MiB that gRPC takes by itself.
const maxMessage = 64 << 20

// DialOptions say how to reach a master.
type DialOptions struct {
	// Certs is the folder with the certificates of a client (see "quern certs").
	Certs string
	// TLS is used in place of Certs. With neither, the connection is not encrypted, and
	// the master must be on this machine.
	TLS *tls.Config
	// Token is what the master knows us by; "": it must ask for none. It is not read from the
	// folder of the certificates, as the quern command does.
	Token string
	// Patience is how long calls are repeated while no master answers that has never
	// answered. 0: 5 s.
	Patience time.Duration
	// Absence is the same for one that has: it is being started anew, perhaps. 0: 20 s.
	Absence time.Duration
	// Lost is called when a handle that waits has lost the master, and tries to
	// reach it again. nil: nobody is told.
	Lost func(error)
	// Away is called once for a call that is repeated since a master that has answered
	// before does not now. nil: nobody is told.
	Away func(error)
	// Version is told the master as ours; "": what the build information says.
	Version string
}

// Client is a connection to a cluster. Its methods may be called from several goroutines.
type Client struct {
	address string
	options DialOptions
	hosted  bool // we are a task of a job: there is nothing to connect to
	conn    *grpc.ClientConn
	rpc     api.ClusterClient
	about   *api.AboutReply
}

// Dial connects to the master at an address, host or host:port. Errors are ErrUnreachable,
// ErrRefused, ErrVersion, or say what is wrong with the certificates.
//
// In a program that a worker or "quern submit" has started, nothing is connected to.
func Dial(ctx context.Context, address string, o DialOptions) (*Client, error) {
	if o.Patience == 0 {
		o.Patience = 5 * time.Second
	}
	if o.Absence == 0 {
		o.Absence = 20 * time.Second
	}
	if o.Version == "" {
		o.Version = buildVersion()
	}
	c := &Client{options: o, hosted: task.Started()}
	if c.hosted {
		return c, nil
	}
	var err error
	if c.address, err = completeAddress(address); err != nil {
		return nil, err
	}
	creds, err := c.credentials()
	if err != nil {
		return nil, err
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(),
		// By itself the library would soon look for a master that comes back only every few seconds.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: firstBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: callTime,
		}),
	}
	// The address is no name of a resolver's, and no proxy is asked.
	if c.conn, err = grpc.NewClient("passthrough:///"+c.address, append(dial, grpc.WithNoProxy())...); err != nil {
		return nil, fmt.Errorf("connect to the master: %w", err)
	}
	c.rpc = api.NewClusterClient(c.conn)
	if err := c.greet(ctx); err != nil {
		_ = c.conn.Close() // nothing was done with it
		return nil, err
	}
	return c, nil
}

// greet asks who answers.
func (c *Client) greet(ctx context.Context) error {
	var reply *api.AboutReply
	err := c.try(ctx, nil, func(ctx context.Context) (err error) {
		reply, err = c.rpc.About(ctx, &api.AboutRequest{})
		return err
	})
	if err != nil {
		return err
	}
	c.about = reply
	if reply.GetProtocol() != api.Protocol {
		return fmt.Errorf("%w: the master at %s speaks version %d of the cluster's protocol (quern %s), this program version %d (quern %s)",
			ErrVersion, c.address, reply.GetProtocol(), reply.GetVersion(), api.Protocol, c.options.Version)
	}
	return nil
}

// Close ends the connection. Jobs go on.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// About says what cluster it is, as it was when Dial connected. nil in a task.
func (c *Client) About() *api.AboutReply { return c.about }

// completeAddress adds the port.
func completeAddress(address string) (string, error) {
	if address == "" {
		return "", errors.New("no address of a master: give host or host:port")
	}
	bare := address
	if strings.HasPrefix(bare, "[") && strings.HasSuffix(bare, "]") {
		bare = bare[1 : len(bare)-1]
	}
	if ip, err := netip.ParseAddr(bare); err == nil {
		return net.JoinHostPort(ip.String(), strconv.Itoa(Port)), nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		if strings.ContainsAny(address, ":/ ") {
			return "", fmt.Errorf("%q is no address of a master: give host or host:port", address)
		}
		return net.JoinHostPort(address, strconv.Itoa(Port)), nil
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strings.Contains(host, "/") {
		return "", fmt.Errorf("%q is no address of a master: give host or host:port", address)
	}
	if host == "" {
		host = "localhost"
	}
	return net.JoinHostPort(host, port), nil
}

// credentials are those of the connection.
func (c *Client) credentials() (credentials.TransportCredentials, error) {
	switch {
	case c.options.TLS != nil:
		return credentials.NewTLS(c.options.TLS), nil
	case c.options.Certs != "":
		_, client, err := identity.Load(c.options.Certs, identity.Client)
		if err != nil {
			return nil, err
		}
		return credentials.NewTLS(client), nil
	}
	if !isLoopback(c.address) {
		return nil, &noCertificatesError{c.address}
	}
	return insecure.NewCredentials(), nil
}

// isLoopback says whether host:port is on this machine.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().IsLoopback()
	}
	return host == "localhost"
}

// callTime bounds a call that is answered at once.
const callTime = 20 * time.Second

// with adds what every call has.
func (c *Client) with(ctx context.Context) context.Context {
	if c.options.Token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.options.Token)
}

// try calls until there is an answer, or no master has answered for as long as
// Patience or Absence. notFound is as for explain.
func (c *Client) try(ctx context.Context, notFound error, call func(context.Context) error) error {
	if c.hosted {
		return errors.New("a task of a job can't ask the cluster for anything")
	}
	for again := c.newRetry(); ; {
		one, cancel := context.WithTimeout(c.with(ctx), callTime)
		err := call(one)
		cancel()
		if err == nil || !again.after(ctx, err) {
			return c.explain(ctx, err, notFound)
		}
	}
}

// retry says whether a call is made once more.
type retry struct {
	c        *Client
	wait     *backoff
	since    time.Time // of the first failure
	failures int
}

func (c *Client) newRetry() *retry { return &retry{c: c, wait: newBackoff()} }

// after waits after an error, and says whether the call is to be repeated.
func (r *retry) after(ctx context.Context, err error) bool {
	if !transient(err) {
		return false
	}
	if r.failures++; r.failures == 1 {
		r.since = time.Now()
	}
	limit := r.c.options.Patience
	known := r.c.about != nil
	if known {
		limit = r.c.options.Absence
	}
	if time.Since(r.since) > limit {
		return false
	}
	// A connection that was cut is no absence.
	if known && r.failures == 2 && r.c.options.Away != nil {
		r.c.options.Away(r.c.explain(ctx, err, nil))
	}
	r.wait.next = min(r.wait.next, longestRetry)
	return r.wait.sleep(ctx)
}

// reset forgets earlier failures: the master has been there since.
func (r *retry) reset() { *r = *r.c.newRetry() }

// backoff is the wait between attempts.
type backoff struct{ next time.Duration }

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	longestRetry = time.Second // of a call that somebody waits for
)

func newBackoff() *backoff { return &backoff{firstBackoff} }

// sleep waits, somewhat at random, and says whether ctx still lives.
func (b *backoff) sleep(ctx context.Context) bool {
	t := time.NewTimer(b.next/2 + rand.N(b.next))
	defer t.Stop()
	b.next = min(2*b.next, maxBackoff)
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b *backoff) reset() { b.next = firstBackoff }

// buildVersion is the version of this library.
func buildVersion() string {
	const module = "github.com/quernmr/quern"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unversioned"
	}
	if info.Main.Path == module && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	for _, d := range info.Deps {
		if d.Path == module && d.Version != "" {
			return d.Version
		}
	}
	return "unversioned"
}
