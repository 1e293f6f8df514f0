// SPDX-License-Identifier: Apache-2.0

package foldbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/rpc"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/quernmr/quern/internal/netlab"
)

// roles make the objects whose methods a role's process offers, in net/rpc's
// sense. Their context ends with the role's input, calls in progress should then end,
// too. One that is an io.Closer is closed at the end.
var roles = map[string]func(context.Context) any{
	"tcp-receive":    func(context.Context) any { return &TCPReceiver{} },
	"tcp-send":       func(context.Context) any { return &TCPSender{} },
	"stream-receive": func(ctx context.Context) any { return &StreamReceiver{ctx: ctx} },
	"stream-send":    func(ctx context.Context) any { return &StreamSender{ctx: ctx} },
	"spin":           func(context.Context) any { return newSpinner() },
}

// roleService is the name that a role's methods are registered under.
const roleService = "Role"

// ServeRole is the process of a role of this package's; see [Serve].
func ServeRole(name string, in io.Reader, out io.Writer) error { return Serve(roles, name, in, out) }

// Serve is a role's process: it makes the role of that name, answers calls of its
// methods from in on out until in ends, and then closes what the role has open. The
// context that a role is made with ends with in.
// Nothing else may be written to out.
func Serve(roles map[string]func(context.Context) any, name string, in io.Reader, out io.Writer) error {
	make, ok := roles[name]
	if !ok {
		return fmt.Errorf("there is no role %q, only %s", name, strings.Join(slices.Sorted(maps.Keys(roles)), ", "))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	role := make(ctx)
	server := rpc.NewServer()
	if err := server.RegisterName(roleService, role); err != nil {
		return fmt.Errorf("role %s: %w", name, err)
	}
	server.ServeConn(duplex{untilEnd{in, cancel}, out, func() error { return nil }})
	if c, ok := role.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// untilEnd calls end when a reader has no more.
type untilEnd struct {
	io.Reader
	end func()
}

func (u untilEnd) Read(b []byte) (int, error) {
	n, err := u.Reader.Read(b)
	if err != nil {
		u.end()
	}
	return n, err
}

// duplex makes a connection of two pipes.
type duplex struct {
	io.Reader
	io.Writer
	close func() error
}

func (d duplex) Close() error { return d.close() }

// Place is where a role's process runs.
type Place struct {
	Command []string     // this program's hidden command; the role's name follows
	Env     []string     // added to this process's
	Host    *netlab.Host // nil: this machine itself
	Addr    netip.Addr   // of the host's that is used; the zero value: Host's own
}

// Address returns the place's IPv4 address.
func (p Place) Address() string {
	if p.Addr.IsValid() {
		return p.Addr.String()
	}
	if p.Host == nil {
		return "127.0.0.1"
	}
	return p.Host.IPv4().String()
}

// Process is a role's process.
type Process struct {
	name   string
	cmd    *exec.Cmd
	client *rpc.Client
	said   *strings.Builder // standard error
}

// endTime is how long a role has to end once its input has, and stopTime if that is
// for a context's end.
const (
	endTime  = 10 * time.Second
	stopTime = 3 * time.Second
)

// Start starts a role. When the context ends so does the role's input; a role that
// is there after [stopTime] is killed.
func Start(ctx context.Context, p Place, role string) (*Process, error) {
	if len(p.Command) == 0 {
		return nil, errors.New("a place for roles needs the command that serves them")
	}
	args := append(slices.Clone(p.Command[1:]), role)
	var cmd *exec.Cmd
	var start func() error
	if p.Host != nil {
		c := p.Host.Command(ctx, p.Command[0], args...)
		cmd, start = c.Cmd, c.Start
	} else {
		cmd = exec.CommandContext(ctx, p.Command[0], args...)
		start = cmd.Start
	}
	if len(p.Env) > 0 {
		cmd.Env = append(cmd.Environ(), p.Env...)
	}
	r := &Process{name: role, cmd: cmd, said: new(strings.Builder)}
	cmd.Stderr = r.said
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("role %s: %w", role, err)
	}
	cmd.Cancel, cmd.WaitDelay = in.Close, stopTime
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("role %s: %w", role, err)
	}
	if err := start(); err != nil {
		return nil, fmt.Errorf("role %s: %w", role, err)
	}
	r.client = rpc.NewClient(duplex{out, in, in.Close})
	return r, nil
}

// Call calls a method of the role and waits for its answer.
func (r *Process) Call(ctx context.Context, method string, args, reply any) error {
	select {
	case c := <-r.client.Go(roleService+"."+method, args, reply, make(chan *rpc.Call, 1)).Done:
		if c.Error != nil {
			return fmt.Errorf("role %s: %s: %w", r.name, method, c.Error)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("role %s: %s: %w", r.name, method, ctx.Err())
	}
}

// ID is the process's number.
func (r *Process) ID() int { return r.cmd.Process.Pid }

// Close ends the role and returns how it ended.
func (r *Process) Close() error {
	_ = r.client.Close() // ends the role's input
	kill := time.AfterFunc(endTime, func() { _ = r.cmd.Process.Kill() })
	defer kill.Stop()
	if err := r.cmd.Wait(); err != nil {
		return fmt.Errorf("role %s: %w: %s", r.name, err, strings.TrimSpace(r.said.String()))
	}
	return nil
}

// None is the argument or answer of calls that have none.
type None struct{ Unused bool }

// Meter answers what its process used so far. Roles embed it.
type Meter struct{}

// Used answers with the process's processor time.
func (Meter) Used(_ *None, used *time.Duration) (err error) {
	*used, err = processTime()
	return err
}

// spinner uses a processor.
type spinner struct{ stop chan struct{} }

func newSpinner() *spinner {
	s := &spinner{make(chan struct{})}
	go func() {
		for x := uint64(0); ; x = mix(x) {
			if x&0xffff == 0 {
				select {
				case <-s.stop:
					return
				default:
				}
			}
		}
	}()
	return s
}

// Ready answers once the role runs.
func (s *spinner) Ready(*None, *None) error { return nil }

func (s *spinner) Close() error {
	close(s.stop)
	return nil
}
