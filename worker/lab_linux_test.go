// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quernmr/quern/internal/netlab"
	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
)

// newLab makes a network with hosts.
func newLab(t *testing.T, hosts int) *netlab.Lab {
	t.Helper()
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	lab, err := netlab.New(netlab.Options{Hosts: hosts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return lab
}

// inHost starts a worker in a process of its own, in a host of a lab.
func (m *master) inHost(host *netlab.Host, kernel bool) (w *running, cmd *netlab.Command) {
	t := m.t
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd = host.Command(context.Background(), self)
	cmd.Env = append(os.Environ(), "WORKER_DIR="+dir, "WORKER_MASTER="+m.address, "WORKER_HOST="+host.IPv4().String())
	if kernel {
		cmd.Env = append(cmd.Env, "WORKER_KERNEL=1")
	}
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(pipe)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		said := make(chan string, 1)
		go func() {
			line, _ := out.ReadString('\n')
			said <- strings.TrimSpace(line)
		}()
		select {
		case line := <-said:
			if line != "<nil>" && line != "" { // it was killed by the test
				t.Errorf("%s ended with %q", host, line)
			}
		case <-time.After(deadline):
			t.Errorf("%s does not end", host)
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
	})
	line, err := out.ReadString('\n')
	id, address, ok := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !ok || len(id) != 32 {
		t.Fatalf("%s: %s %v", host, line, err)
	}
	return &running{Worker: &Worker{id: id, opt: Options{Address: address}}, t: t, dir: dir}, cmd
}

// TestLabBroadcast has a job's program and side inputs spread over a lab with faults, from a host to others, of
// which some have the kernel's help and some have not: tasks map what programs have stored.
func TestLabBroadcast(t *testing.T) {
	lab := newLab(t, 5)
	if err := lab.SetFaults(netlab.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Hold: time.Millisecond, UDPOnly: true}); err != nil {
		t.Fatal(err)
	}
	for _, kernel := range [][]bool{{true, true, true, true}, {true, true, false, true}, {false, true, true, false}} {
		t.Run(fmt.Sprint(kernel), func(t *testing.T) {
			m := newMasterIn(t, lab.Host(1))
			var ws []*running
			kernels := uint32(0)
			for i, k := range kernel {
				w, _ := m.inHost(lab.Host(i+2), k)
				ws = append(ws, w)
				if k && i > 0 {
					kernels++
				}
			}
			stop := filepath.Join(t.TempDir(), "stop")
			if err := os.WriteFile(stop, []byte("to be or not"), 0o600); err != nil {
				t.Fatal(err)
			}
			j, out := m.job("side", "STOP="+stop)
			j.planned(ws[0])
			for i := range 2 {
				d := j.plan.SideInputs[i].Digest
				m.spread(fmt.Sprint(i), d, true, ws[0], ws[1:]...)
				j.coming = append(j.coming, d)
			}
			file := m.put(bigBlob(1, 5<<20))
			m.spread("file", file, false, ws[0], ws[1:]...)
			j.mapped(ws...)
			var parts []*task.ReduceResult
			for p := range j.plan.Partitions {
				r := &task.ReduceResult{}
				j.ok(j.launch(ws[p], j.reduceLaunch(p)), r)
				parts = append(parts, r)
			}
			j.commit(ws[2], parts)
			if n, counts := words(t, out); n != 800+200<<20 || counts["LARGE"] != 200<<20 || counts["to"] != 0 || counts["that"] != 200 {
				t.Errorf("%d words: %v", n, counts)
			}
			for _, id := range []string{"0", "1", "file"} {
				r := m.spreaded(id)
				t.Logf("%v", r)
				if r.GetReached() != 3 || r.GetKernel() != kernels || r.GetFailed() != 0 {
					t.Errorf("%v", r)
				}
			}
			for i := range 2 {
				m.only(j.plan.SideInputs[i].Digest, 0)
			}
			for _, w := range ws {
				m.send(w.ID(), &api.MasterMessage{Forget: []string{j.id}})
			}
		})
	}
}
