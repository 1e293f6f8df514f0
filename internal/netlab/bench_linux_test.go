// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"net/netip"
	"testing"
	"time"
)

// BenchmarkSend sends packets of 1,400 bytes over a link, which carries them in
// the sender's time.
func BenchmarkSend(b *testing.B) {
	for _, c := range []struct {
		name   string
		faults Faults
	}{
		{"good", Faults{}},
		{"loss", Faults{Loss: 0.001}},
		{"reorder", Faults{Reorder: 0.05}},
		{"delay", Faults{Delay: time.Millisecond}},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := build(b, Options{Hosts: 2, Faults: c.faults, StaticNeighbours: true})
			// Nobody reads: what is beyond the socket's room is dropped there.
			listen(b, l.Host(2), IPv4(2), 7000)
			client := listen(b, l.Host(1), IPv4(1), 0)
			packet := make([]byte, 1400)
			target := netip.AddrPortFrom(IPv4(2), 7000)
			for b.Loop() {
				if _, err := client.WriteToUDPAddrPort(packet, target); err != nil {
					b.Fatal(err)
				}
			}
			counters, err := l.Counters()
			if err != nil {
				b.Fatal(err)
			}
			t := counters.Total()
			b.ReportMetric(float64(t.Held)/float64(b.N), "held/op")
			b.ReportMetric(float64(t.Unheld)/float64(b.N), "unheld/op")
			b.ReportMetric(float64(t.Overrun)/float64(b.N), "overrun/op")
		})
	}
}
