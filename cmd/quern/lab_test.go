// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestChance(t *testing.T) {
	for text, want := range map[string]float64{"0": 0, "5%": 0.05, "0.05": 0.05, "100%": 1, "1": 1, "0.5%": 0.005} {
		var c chance
		if err := c.Set(text); err != nil || float64(c) != want {
			t.Errorf("%s is %v, want %v; %v", text, float64(c), want, err)
		}
	}
	for _, text := range []string{"", "%", "5", "-1%", "101%", "x", "NaN", "inf", "5%%"} {
		var c chance
		if err := c.Set(text); err == nil {
			t.Errorf("%q is %v, want an error", text, float64(c))
		}
	}
	c := chance(0.05)
	if c.String() != "5%" {
		t.Errorf("%s", c.String())
	}
}

func TestLabHelp(t *testing.T) {
	if text := quern(t, "lab").success(t); !strings.Contains(text, "run") || !strings.Contains(text, "clean") {
		t.Errorf("%s", text)
	}
	text := quern(t, "lab", "run", "--help").success(t)
	for _, flag := range []string{"hosts", "mtu", "loss", "duplicate", "reorder", "corrupt", "delay", "jitter", "hold", "seed", "json", "quiet", "name"} {
		if !strings.Contains(text, "--"+flag) {
			t.Errorf("help does not show --%s", flag)
		}
	}
	quern(t, "lab", "rnu").failure(t, exitUsage, "rnu")
	quern(t, "lab", "run", "--loss", "5", "--", "true").failure(t, exitUsage, "--loss", "5% or 0.05")
	quern(t, "lab", "run", "--delay", "5", "--", "true").failure(t, exitUsage, "--delay", "5ms")
}
