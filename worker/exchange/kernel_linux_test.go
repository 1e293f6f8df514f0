// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/internal/streamlab"
	"github.com/quernmr/quern/shuffle/fold"
)

// startIn starts workers in the hosts of a lab.
func startIn(t *testing.T, lab *netlab.Lab, s *streamlab.Setting) []*worker {
	t.Helper()
	var ws []*worker
	var ends []*streamlab.End
	for i, kernel := range s.Kernel {
		host := lab.Host(i + 1)
		e, err := s.Open(host, kernel)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, e)
		w := &worker{t: t, id: host.Name(), dir: t.TempDir(), conns: map[string]*grpc.ClientConn{}, receiver: e.Receiver, sender: e.Sender, close: e.Close}
		w.dialIn = func(ctx context.Context, address string) (conn net.Conn, err error) {
			err = host.Do(func() error {
				// Dialled by this thread, so in the host: no second attempt by another one.
				d := net.Dialer{FallbackDelay: -1}
				conn, err = d.DialContext(ctx, "tcp", address)
				return err
			})
			return conn, err
		}
		var l net.Listener
		err = host.Do(func() error {
			l, err = net.Listen("tcp", fmt.Sprintf("%s:7120", host.IPv4()))
			return err
		})
		if err != nil {
			t.Fatal(errors.Join(err, e.Close()))
		}
		w.run(settings{}, l)
		ws = append(ws, w)
	}
	for i, e := range ends {
		if err := e.Warm(testContext(t), ends[(i+1)%len(ends)]); err != nil {
			t.Fatal(err)
		}
	}
	return ws
}

// TestKernel gathers over a lab whose links lose, double and reorder: two hosts' kernels
// fold, the third's doesn't.
func TestKernel(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	lab, err := netlab.New(netlab.Options{Hosts: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := lab.SetFaults(netlab.Faults{Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Hold: time.Millisecond, UDPOnly: true}); err != nil {
		t.Fatal(err)
	}
	t.Run("hosts", func(t *testing.T) {
		s := &streamlab.Setting{Hosts: 3, Kernel: []bool{true, true, false}, Ports: 2, Stall: 20 * time.Second, TableMemory: 32 << 20}
		ws := startIn(t, lab, s)
		jobs := []*testJob{newJob(3, fold.Sum), newJob(3, fold.Sum), newJob(3, fold.Xor, fold.Sum, fold.Min, fold.Max)}
		rng := rand.New(rand.NewPCG(5, 5))
		jobs[1].constants.Shuffle = "user"
		for _, j := range jobs {
			for m := range 6 {
				var out []map[string]value
				for p := range 3 {
					part := map[string]value{}
					for i := range 5000 {
						v := value{big.NewInt(int64(i))}
						for range j.ops[1:] {
							v = append(v, big.NewInt(rng.Int64()-1<<62))
						}
						part[fmt.Sprintf("w%d-%d", p, i+m*1000)] = v
					}
					out = append(out, part)
				}
				j.outputs = append(j.outputs, out)
			}
		}
		for n, j := range jobs {
			ctx := testContext(t)
			where := func(m int) *worker { return ws[m%3] }
			var outs []Output
			for m := range j.outputs {
				outs = append(outs, j.keep(t, where(m), m, 0))
			}
			for p := range uint32(3) {
				in := j.input(p, outs, where)
				got, err := ws[p].x.Gather(ctx, j.gather(t, in))
				if err == nil {
					err = j.checkFolded(got, int(p))
				}
				if err != nil {
					t.Fatalf("job %d, part %d: %v", n, p, err)
				}
				t.Logf("job %d, part %d: %+v", n, p, got.Counts)
				// What a host has itself is folded without packets. Of the other two thirds
				// some go up before there is a table on the CPU, or for want of one.
				c := got.Counts
				kernel := n != 1 && p < 2
				if c.Kernel+c.User != in.Pairs || c.User < in.Pairs/3 || (c.Kernel > in.Pairs/6) != kernel || !kernel && c.Kernel > 0 {
					t.Errorf("job %d, part %d: %+v of %d pairs", n, p, c, in.Pairs)
				}
			}
		}
	})
}
