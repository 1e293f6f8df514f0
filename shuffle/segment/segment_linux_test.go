// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The system cuts what is sent with the message into packets of the size that was set last.
func TestSegments(t *testing.T) {
	in, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := net.DialUDP("udp4", nil, in.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	control := Control()
	sent := make([]byte, 2500)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	for _, c := range []struct {
		size int
		want []int
	}{{1000, []int{1000, 1000, 500}}, {1250, []int{1250, 1250}}, {1400, []int{1400, 1100}}, {700, []int{700, 700, 700, 400}}} {
		SetSize(control, c.size)
		if _, _, err := out.WriteMsgUDP(sent, control, nil); err != nil {
			t.Fatalf("segments of %d: %v", c.size, err)
		}
		rest := sent
		for _, want := range c.want {
			b := make([]byte, 4000)
			_ = in.SetReadDeadline(time.Now().Add(time.Minute))
			n, err := in.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			if n != want || !bytes.Equal(b[:n], rest[:want]) {
				t.Fatalf("segments of %d: a packet of %d bytes, want %d, or they differ", c.size, n, want)
			}
			rest = rest[want:]
		}
	}
	// What can't be cut is said to be refused: a segment that is larger than the device takes.
	SetSize(control, 65535)
	if _, _, err := out.WriteMsgUDP(make([]byte, 60), control, nil); err != nil && !Refused(err) {
		t.Errorf("%v is not taken for a refusal", err)
	}
}

func TestRefused(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EIO: true, unix.EINVAL: true, unix.EOPNOTSUPP: true, unix.ENOPROTOOPT: true,
		unix.ENOBUFS: false, unix.ECONNREFUSED: false, errors.New("another"): false,
	} {
		if got := Refused(fmt.Errorf("send: %w", os.NewSyscallError("sendmsg", err))); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
	if Refused(nil) {
		t.Error("no error is refused")
	}
}
