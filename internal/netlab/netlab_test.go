// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		options Options
		says    string // "": they are fine
	}{
		{Options{Hosts: 1}, ""},
		{Options{Hosts: MaxHosts, MTU: MaxMTU, Queues: 64, Name: "a.b-c_1"}, ""},
		{Options{}, "0 hosts"},
		{Options{Hosts: MaxHosts + 1}, "hosts"},
		{Options{Hosts: 1, MTU: MinMTU - 1}, "MTU"},
		{Options{Hosts: 1, MTU: MaxMTU + 1}, "MTU"},
		{Options{Hosts: 1, MTU: MaxSwitchMTU, Switch: true}, ""},
		{Options{Hosts: 1, MTU: MaxSwitchMTU + 1, Switch: true}, "switch"},
		{Options{Hosts: 1, Queues: -1}, "queues"},
		{Options{Hosts: 1, Name: "../up"}, "name"},
		{Options{Hosts: 1, Name: "-x"}, "name"},
		{Options{Hosts: 1, Faults: Faults{Loss: 1, Duplicate: 0.5, Corrupt: 0.1, Reorder: 0.1}}, ""},
		{Options{Hosts: 1, Faults: Faults{Loss: 1.01}}, "loss"},
		{Options{Hosts: 1, Faults: Faults{Duplicate: -0.1}}, "duplicate"},
		{Options{Hosts: 1, Faults: Faults{Corrupt: math.NaN()}}, "corrupt"},
		{Options{Hosts: 1, Faults: Faults{Reorder: math.Inf(1)}}, "reorder"},
		{Options{Hosts: 1, Faults: Faults{Delay: -1}}, "delay"},
		{Options{Hosts: 1, Faults: Faults{Delay: time.Hour}}, "delay"},
		{Options{Hosts: 1, Faults: Faults{Jitter: time.Hour}}, "jitter"},
		{Options{Hosts: 1, Faults: Faults{Hold: time.Hour}}, "hold"},
		{Options{Hosts: 1, Faults: Faults{Hold: 20 * time.Second, Delay: 20 * time.Second}}, "add up"},
		{Options{Hosts: 1, Faults: Faults{Reorder: 0.1, Hold: 1}}, "hold"},
	} {
		err := c.options.Check()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want something about %q", c.options, err, c.says)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{IPv4(1).String(), "10.71.17.1"},
		{IPv6(1).String(), "fd71:17::1"},
		{IPv6(200).String(), "fd71:17::c8"},
		{HardwareAddr(200).String(), "02:71:17:00:00:c8"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}
